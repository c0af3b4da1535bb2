-- KEYS: record, shard
-- ARGV: epoch, seen, proof, key id, channel
local mark, lost = mark_of(KEYS[2], ARGV[1], ARGV[2])
if lost then return lost end
local found = redis.call('HGET', KEYS[1], 'r')
if found and strange(found) then return strange(found) end
if not found or sub(found, 52, 83) ~= ARGV[3] then return {0} end
local state = sub(found, 101, 101)
if state == DONE then return {0} end
if state == UNKNOWN then return {1, mark} end
local now = clock()
redis.call('HSET', KEYS[1], 'r', sub(found, 1, 100) .. UNKNOWN .. pad(now) .. sub(found, 118))
redis.call('PUBLISH', ARGV[5], ARGV[4])
return {1, raise(KEYS[2], mark, now)}
