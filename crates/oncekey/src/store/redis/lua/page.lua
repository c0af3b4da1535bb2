-- KEYS: open or done
-- ARGV: highest score, limit
local reply = {clock()}
local range = redis.call('ZRANGE', KEYS[1], ARGV[1], '-inf', 'BYSCORE', 'REV',
  'LIMIT', 0, ARGV[2], 'WITHSCORES')
for i = 1, #range, 2 do
  reply[i + 1] = range[i]
  reply[i + 2] = tonumber(range[i + 1])
end
return reply
