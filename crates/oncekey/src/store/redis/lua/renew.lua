-- KEYS: shard, then records
-- ARGV: epoch, seen, span, then a proof for each record
local _, lost = mark_of(KEYS[1], ARGV[1], ARGV[2])
if lost then return lost end
local until_ = math.min(clock() + ARGV[3], LAST)
local reply = {1, until_}
for i = 2, #KEYS do
  local found = redis.call('HGET', KEYS[i], 'r')
  -- One record that cannot be read must not take the leases of the others along.
  local held = found and not strange(found) and sub(found, 52, 83) == ARGV[i + 2] and sub(found, 101, 101) == RUNNING
  if held then
    redis.call('HSET', KEYS[i], 'r', sub(found, 1, 101) .. pad(until_) .. sub(found, 118))
  end
  reply[i + 1] = held and 1 or 0
end
return reply
