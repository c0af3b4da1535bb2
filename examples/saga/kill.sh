#!/bin/sh
# Places an order in a fresh folder, kills the process at its first point, its second, …, lets the next process go
# on each time, and stops when an order was not killed. What ships is charged once; what cannot be shipped is
# charged once and refunded once; what cannot be paid is not charged. The stock is right every time.
set -eu
saga=${1:?path of the program saga}

# article, reply, what all the books say
check() {
    point=1
    while :; do
        folder=$(mktemp -d)
        if "$saga" "$folder" order-1 "$1" "$point" > "$folder/out" 2>&1; then
            rm -r "$folder"
            echo "$1: an order has $((point - 1)) points; each was killed once"
            return 0
        fi
        said=$("$saga" "$folder" order-1 "$1")
        case $said in
            "$2 | points "*" | $3") echo "$1 killed at $point: $said" ;;
            *) echo "$1 killed at $point: WRONG: $said"; return 1 ;;
        esac
        rm -r "$folder"
        point=$((point + 1))
    done
}

# Most of the time they wait for a lease to lapse: all three wait at once.
check book '201 1' 'order shipped | stock 4 | charges 1 | refunds 0 | parcels 1 | stuck 0' & book=$!
check piano '409 "too heavy to ship"' 'order cancelled | stock 5 | charges 1 | refunds 1 | parcels 0 | stuck 0' & piano=$!
check yacht '402 "the card was declined"' 'order cancelled | stock 5 | charges 0 | refunds 0 | parcels 0 | stuck 0' & yacht=$!
failed=0
for one in "$book" "$piano" "$yacht"; do
    wait "$one" || failed=1
done
exit "$failed"
