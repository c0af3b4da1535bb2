-- KEYS: record, shard
-- ARGV: epoch, seen, proof, outcome, part, bytes
local mark, lost = mark_of(KEYS[2], ARGV[1], ARGV[2])
if lost then return lost end
local found = redis.call('HGET', KEYS[1], 'r')
if found and strange(found) then return strange(found) end
if not found or sub(found, 52, 83) ~= ARGV[3] then return {0} end
if sub(found, 101, 101) == DONE then
  return {sub(found, -52, -37) == ARGV[4] and 1 or 0, mark}
end
redis.call('HSET', KEYS[1], 'p' .. ARGV[4] .. ARGV[5], ARGV[6])
return {1, mark}
