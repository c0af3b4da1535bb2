#!/bin/sh
# Places an order, kills the process at its first point, its second, …, lets the next process go on each time, and
# stops when an order was not killed. What ships is charged once; what cannot be shipped is charged once and
# refunded once; what cannot be paid is not charged. The stock is right every time. Each order has a folder of its
# own for the partners' books, and for its SQLite file if no URL of a server is given.
set -eu
saga=${1:?path of the program saga}
shift
if [ $# -gt 0 ]; then set -- --database "$1"; fi

# reply, article, what all the books say, and then the arguments of the program
check() {
    reply=$1 article=$2 books=$3
    shift 3
    point=1
    while :; do
        folder=$(mktemp -d)
        order=order-$(basename "$folder")
        if "$saga" "$@" "$folder" "$order" "$article" "$point" > "$folder/out" 2>&1; then
            rm -r "$folder"
            echo "$article: an order has $((point - 1)) points; each was killed once"
            return 0
        fi
        said=$("$saga" "$@" "$folder" "$order" "$article")
        case $said in
            "$reply"*" | points "*" | $books") echo "$article killed at $point: $said" ;;
            *) echo "$article killed at $point: WRONG: $said"; return 1 ;;
        esac
        rm -r "$folder"
        point=$((point + 1))
    done
}

# Most of the time they wait for a lease to lapse: all three wait at once.
check 201 book 'order shipped | stock 4 | charges 1 | refunds 0 | parcels 1 | flow done' "$@" & book=$!
check '409 "too heavy to ship"' piano \
    'order cancelled | stock 5 | charges 1 | refunds 1 | parcels 0 | flow undone' "$@" & piano=$!
check '402 "the card was declined"' yacht \
    'order cancelled | stock 5 | charges 0 | refunds 0 | parcels 0 | flow undone' "$@" & yacht=$!
failed=0
for one in "$book" "$piano" "$yacht"; do
    wait "$one" || failed=1
done
exit "$failed"
