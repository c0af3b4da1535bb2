-- KEYS: record, shard, open, done, due
-- ARGV: key id, record, answer, progress, due, forget
-- Works on a shard that is empty or of another life: that is when it is needed.
local fence = tonumber(sub(ARGV[2], 68, 83))
local found = redis.call('HGET', KEYS[1], 'r')
if found and strange(found) then return strange(found) end
if found then
  local state = sub(found, 101, 101)
  local running = sub(found, 100, 100) == NO and 0 or 1
  local progress = state == DONE and 3 or state == RUNNING and running or 2
  local other = tonumber(sub(found, 68, 83))
  if other > fence or (other == fence and progress >= tonumber(ARGV[4])) then return {0} end
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'r', ARGV[2])
if sub(ARGV[2], 101, 101) == DONE then
  redis.call('HSET', KEYS[1], 'a', ARGV[3])
  expire(KEYS[1], tonumber(ARGV[6]))
  redis.call('ZREM', KEYS[3], ARGV[1])
  redis.call('ZADD', KEYS[4], pad(fence), ARGV[1])
  redis.call('ZADD', KEYS[5], ARGV[5], ARGV[1])
else
  redis.call('ZADD', KEYS[3], pad(fence), ARGV[1])
  redis.call('ZREM', KEYS[4], ARGV[1])
  redis.call('ZREM', KEYS[5], ARGV[1])
end
local meta = redis.call('GET', KEYS[2]) or string.rep('0', 48)
local mark = math.max(tonumber(sub(meta, 33, 48)), fence)
redis.call('SET', KEYS[2], sub(meta, 1, 32) .. pad(mark))
return {1, mark}
