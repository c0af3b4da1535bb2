-- KEYS: record, shard, open, done, due
-- ARGV: epoch, seen, proof, key id, channel
local mark, lost = mark_of(KEYS[2], ARGV[1], ARGV[2])
if lost then return lost end
local found = redis.call('HGET', KEYS[1], 'r')
if found and strange(found) then return strange(found) end
if not found or sub(found, 52, 83) ~= ARGV[3] or sub(found, 101, 101) == DONE then return {0} end
redis.call('DEL', KEYS[1])
redis.call('ZREM', KEYS[3], ARGV[4])
-- If Redis removed the generation before, its place in the indexes would pass for this one's.
redis.call('ZREM', KEYS[4], ARGV[4])
redis.call('ZREM', KEYS[5], ARGV[4])
redis.call('PUBLISH', ARGV[5], ARGV[4])
return {1, raise(KEYS[2], mark, clock())}
