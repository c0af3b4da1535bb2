-- KEYS: record, shard
-- ARGV: epoch, seen
-- What is there is told even if something was lost: finished work is replayed meanwhile.
local _, lost = mark_of(KEYS[2], ARGV[1], ARGV[2])
local both = redis.call('HMGET', KEYS[1], 'r', 'a')
return {1, clock(), both[1], both[2], lost and lost[1] or 0}
