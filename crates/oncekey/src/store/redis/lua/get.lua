-- KEYS: record, shard
-- ARGV: epoch, seen
local _, lost = mark_of(KEYS[2], ARGV[1], ARGV[2])
if lost then return lost end
local both = redis.call('HMGET', KEYS[1], 'r', 'a')
return {1, clock(), both[1], both[2]}
