-- KEYS: record, shard
-- ARGV: epoch, seen, proof
local mark, lost = mark_of(KEYS[2], ARGV[1], ARGV[2])
if lost then return lost end
local found = redis.call('HGET', KEYS[1], 'r')
if found and strange(found) then return strange(found) end
if not found or sub(found, 52, 83) ~= ARGV[3] or sub(found, 101, 101) ~= RUNNING then
  return {0}
end
if sub(found, 100, 100) == YES then return {1, mark} end
redis.call('HSET', KEYS[1], 'r', sub(found, 1, 99) .. YES .. sub(found, 101))
return {1, raise(KEYS[2], mark, clock())}
