-- KEYS: shard
-- ARGV: epoch, mark
-- Gives a shard to a life of the store. Its mark never falls.
local meta = redis.call('GET', KEYS[1])
local mark = tonumber(ARGV[2])
if meta then mark = math.max(mark, tonumber(sub(meta, 33, 48))) end
redis.call('SET', KEYS[1], ARGV[1] .. pad(mark))
return {1, mark}
