-- KEYS: due
-- ARGV: limit
return redis.call('ZRANGE', KEYS[1], '-inf', pad(clock()), 'BYSCORE', 'LIMIT', 0, ARGV[1])
