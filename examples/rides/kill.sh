#!/bin/sh
# Orders a ride in a fresh folder, kills the process at its first point, its second, …, lets the next process go
# on each time, and stops when an order was not killed. One ride, one receipt, one charge: every time.
set -eu
rides=${1:?path of the program rides}
point=1
while :; do
    folder=$(mktemp -d)
    if "$rides" "$folder" order-1 "$point" > "$folder/out" 2>&1; then
        echo "an order has $((point - 1)) points; each was killed once"
        rm -r "$folder"
        exit 0
    fi
    said=$("$rides" "$folder" order-1)
    case $said in
        '201 [1,"ch_1"]'*'| rides 1 | receipts 1 | charges 1') echo "killed at $point: $said" ;;
        *) echo "killed at $point: WRONG: $said"; exit 1 ;;
    esac
    rm -r "$folder"
    point=$((point + 1))
done
