-- KEYS: shard, done, due, then records
-- ARGV: epoch, seen, then a key id for each record
local _, lost = mark_of(KEYS[1], ARGV[1], ARGV[2])
if lost then return lost end
local now = clock()
local forgotten, stripped = 0, 0
for i = 4, #KEYS do
  local id = ARGV[i - 1]
  local found = redis.call('HGET', KEYS[i], 'r')
  local done = found and sub(found, 101, 101) == DONE
  local forget = done and tonumber(sub(found, -72, -57))
  if not done or forget <= now then
    -- Redis was quicker, or a new generation runs: then the indexes lag behind.
    if done then redis.call('DEL', KEYS[i]) end
    redis.call('ZREM', KEYS[2], id)
    local was_due = redis.call('ZREM', KEYS[3], id)
    if done or not found then forgotten = forgotten + was_due end
  elseif tonumber(sub(found, -88, -73)) <= now then
    if sub(found, -53, -53) ~= EXPIRED then
      local seal = sub(found, -20, -5)
      redis.call('DEL', KEYS[i])
      redis.call('HSET', KEYS[i], 'r',
        sub(found, 1, -54) .. EXPIRED .. sub(found, -52, -37) .. seal .. seal .. '\0\0\0\0')
      expire(KEYS[i], forget)
      stripped = stripped + 1
    end
    redis.call('ZADD', KEYS[3], pad(forget), id)
  end
end
return {1, forgotten, stripped}
