#!/bin/sh
# Orders a ride, kills the process at its first point, its second, …, lets the next process go on each time, and
# stops when an order was not killed. One ride, one receipt, one charge: every time. Each order has a folder of its
# own for the provider's books, and for its SQLite file if no URL of a server is given.
set -eu
rides=${1:?path of the program rides}
shift
if [ $# -gt 0 ]; then set -- --database "$1"; fi
point=1
while :; do
    folder=$(mktemp -d)
    order=order-$(basename "$folder")
    if "$rides" "$@" "$folder" "$order" "$point" > "$folder/out" 2>&1; then
        echo "an order has $((point - 1)) points; each was killed once"
        rm -r "$folder"
        exit 0
    fi
    said=$("$rides" "$@" "$folder" "$order")
    case $said in
        '201 ['*',"ch_1"]'*'| rides 1 | receipts 1 | charges 1 | flow done') echo "killed at $point: $said" ;;
        *) echo "killed at $point: WRONG: $said"; exit 1 ;;
    esac
    rm -r "$folder"
    point=$((point + 1))
done
