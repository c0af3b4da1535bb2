-- KEYS: record, shard, open, done, due
-- ARGV: epoch, seen, head, tail, sent, lease, grace, classes that may send again, key id
local mark, lost = mark_of(KEYS[2], ARGV[1], ARGV[2])
if lost then return lost end
local now = clock()
local head = ARGV[3]
local grant, earlier, created = 0, ARGV[5], now
local may_have = false
local found = redis.call('HGET', KEYS[1], 'r')
if found and strange(found) then return strange(found) end
if found then
  local state = sub(found, 101, 101)
  if state == DONE then
    if tonumber(sub(found, -72, -57)) > now then
      local live = sub(found, 3, 35) == sub(head, 3, 35)
        and tonumber(sub(found, -88, -73)) > now and sub(found, -53, -53) == '\0'
      return {0, now, found, live and redis.call('HGET', KEYS[1], 'a')}
    end
    grant = 2
    redis.call('ZREM', KEYS[4], ARGV[9])
    redis.call('ZREM', KEYS[5], ARGV[9])
  else
    if sub(found, 3, 35) ~= sub(head, 3, 35) then return {0, now, found} end
    local until_ = tonumber(sub(found, 102, 117))
    local sent = sub(found, 100, 100)
    may_have = sent == YES
    -- A mark that nobody wrote is no mark that nothing was sent. The reader will say so.
    if not may_have and sent ~= NO then return {0, now, found} end
    if state == RUNNING then
      if sub(found, 52, 67) == sub(head, 52, 67) then
        until_ = math.min(now + ARGV[6], LAST)
        redis.call('HSET', KEYS[1], 'r', sub(found, 1, 101) .. pad(until_) .. sub(found, 118))
        return {2, now, tonumber(sub(found, 68, 83)), until_, 1, may_have and 1 or 0}
      end
      if now < until_ + ARGV[7] then return {0, now, found} end
    elseif state == UNKNOWN then
      may_have = true
    else
      return {0, now, found}
    end
    if may_have and not string.find(ARGV[8], sub(found, 2, 2), 1, true) then
      return {0, now, found}
    end
    grant, created = 3, tonumber(sub(found, 84, 99))
    if may_have then earlier = YES end
  end
  -- With the answer and the pieces that an earlier attempt may have left.
  redis.call('DEL', KEYS[1])
  mark = math.max(mark, tonumber(sub(found, 68, 83)))
end
local fence = raise(KEYS[2], mark, now)
local until_ = math.min(now + ARGV[6], LAST)
redis.call('HSET', KEYS[1], 'r',
  head .. pad(fence) .. pad(created) .. earlier .. RUNNING .. pad(until_) .. ARGV[4])
-- The first fence of a generation is its place in lists. A takeover does not move it.
if grant == 3 then
  redis.call('ZADD', KEYS[3], 'NX', pad(fence), ARGV[9])
else
  redis.call('ZADD', KEYS[3], pad(fence), ARGV[9])
end
return {1, now, fence, until_, grant, may_have and 1 or 0}
