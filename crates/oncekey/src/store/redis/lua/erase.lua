-- KEYS: record, shard
-- ARGV: epoch, seen, old head and fence, old state, old ending, new head, new tail, new ending
local mark, lost = mark_of(KEYS[2], ARGV[1], ARGV[2])
if lost then return lost end
local found = redis.call('HGET', KEYS[1], 'r')
if not found or sub(found, 1, 83) ~= ARGV[3] or sub(found, 101, 101) ~= ARGV[4] then return {0} end
local done = ARGV[4] == DONE
if done and sub(found, -56) ~= ARGV[5] then return {0} end
-- The whole key goes, with the answer and all pieces, and comes back without them.
redis.call('DEL', KEYS[1])
local times = done and sub(found, -88, -57) or ''
redis.call('HSET', KEYS[1], 'r', ARGV[6] .. sub(found, 68, 117) .. ARGV[7] .. times .. ARGV[8])
if done then expire(KEYS[1], tonumber(sub(found, -72, -57))) end
return {1, raise(KEYS[2], mark, clock())}
