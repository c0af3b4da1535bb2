-- KEYS: root
-- ARGV: the epoch that may be replaced, a new epoch
-- Begins a life of the store, unless somebody else has begun one meanwhile.
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if not epoch or epoch == ARGV[1] then
  epoch = ARGV[2]
  redis.call('HSET', KEYS[1], 'epoch', epoch, 'state', 'new')
end
return {epoch, redis.call('HGET', KEYS[1], 'state')}
