-- KEYS: shard, done, due, then records
-- ARGV: epoch, seen, then a key id for each record
local _, lost = mark_of(KEYS[1], ARGV[1], ARGV[2])
if lost then return lost end
local now = clock()
local forgotten, stripped, moved = 0, 0, 0
-- Puts a key id off, if it is still in the index of what is due.
local function put_off(id, to)
  moved = moved + redis.call('ZADD', KEYS[3], 'XX', 'CH', pad(to), id)
end
for i = 4, #KEYS do
  local id = ARGV[i - 1]
  local found = redis.call('HGET', KEYS[i], 'r')
  local done = found and sub(found, 101, 101) == DONE
  local expires = done and number(sub(found, -88, -73))
  local forget = done and number(sub(found, -72, -57))
  if found and strange(found) or done and not (expires and forget) then
    -- Nobody can say when it is due. It stays as it is, and out of the way of the others for a day.
    put_off(id, now + 86400000000)
  elseif not done or forget <= now then
    -- Redis was quicker, or a new generation runs: then the indexes lag behind.
    if done then redis.call('DEL', KEYS[i]) end
    redis.call('ZREM', KEYS[2], id)
    local was_due = redis.call('ZREM', KEYS[3], id)
    moved = moved + was_due
    if done or not found then forgotten = forgotten + was_due end
  elseif expires <= now then
    if sub(found, -53, -53) ~= EXPIRED then
      local seal = sub(found, -20, -5)
      redis.call('DEL', KEYS[i])
      redis.call('HSET', KEYS[i], 'r',
        sub(found, 1, -54) .. EXPIRED .. sub(found, -52, -37) .. seal .. seal .. '\0\0\0\0')
      expire(KEYS[i], forget)
      stripped = stripped + 1
    end
    put_off(id, forget)
  else
    -- The index has another time than the record, which counts.
    put_off(id, expires)
  end
end
return {1, forgotten, stripped, moved}
