-- KEYS: record, shard, open, done, due
-- ARGV: epoch, seen, proof, key id, ending, answer, pieces, retention, linger, channel
local mark, lost = mark_of(KEYS[2], ARGV[1], ARGV[2])
if lost then return lost end
local found = redis.call('HGET', KEYS[1], 'r')
if found and strange(found) then return strange(found) end
if not found or sub(found, 52, 83) ~= ARGV[3] then return {0} end
if sub(found, 101, 101) == DONE then
  if sub(found, -52, -37) == sub(ARGV[5], 5, 20) then return {1, mark} end
  return {0}
end
for part = 0, tonumber(ARGV[7]) - 1 do
  -- Somebody erased the record after its pieces were written.
  if redis.call('HEXISTS', KEYS[1], 'p' .. sub(ARGV[5], 5, 20) .. part) == 0 then return {2} end
end
local now = clock()
-- As Times::of says: the later of clock and fence, but no more than a day ahead.
local at = math.max(now, math.min(tonumber(sub(found, 68, 83)), now + 86400000000))
local expires = math.min(at + ARGV[8], LAST)
local forget = math.min(expires + ARGV[9], LAST)
local record = sub(found, 1, 100) .. DONE .. pad(at) .. sub(found, 118)
  .. pad(expires) .. pad(forget) .. ARGV[5]
redis.call('HSET', KEYS[1], 'r', record, 'a', ARGV[6])
expire(KEYS[1], forget)
local place = redis.call('ZSCORE', KEYS[3], ARGV[4]) or sub(found, 68, 83)
redis.call('ZREM', KEYS[3], ARGV[4])
redis.call('ZADD', KEYS[4], place, ARGV[4])
redis.call('ZADD', KEYS[5], pad(expires), ARGV[4])
redis.call('PUBLISH', ARGV[10], ARGV[4])
return {1, raise(KEYS[2], mark, now)}
