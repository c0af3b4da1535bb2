-- Put before every script. The layout of a record is described in layout.rs; the positions here are
-- Lua's, which count from one. Numbers are microseconds and stay below 2^53, where a double is
-- exact; they are written with sixteen digits, because tostring would round them.
local LAST = 9007199254740991
local RUNNING, DONE, UNKNOWN = '\15', '\51', '\85'
local NO, YES = '\15', '\112'
local EXPIRED = '\6'
local FORMAT = '\1'

local sub = string.sub

local function pad(number)
  return string.format('%016.0f', number)
end

-- Sixteen digits, or nothing.
local function number(digits)
  return #digits == 16 and string.match(digits, '^%d+$') and tonumber(digits)
end

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- What to answer if a record is of a format that these scripts do not know: nothing in it can be
-- relied on, and nothing of it may be written over.
local function strange(found)
  local format = string.byte(found, 1)
  if sub(found, 1, 1) ~= FORMAT then return {-4, format or 0} end
end

-- The high-water mark of a shard, or nothing and why the shard cannot be trusted: it is empty, it
-- belongs to another life of the store, or it has lost what it acknowledged to this caller.
local function mark_of(shard, epoch, seen)
  local meta = redis.call('GET', shard)
  if not meta then return nil, {-1} end
  if sub(meta, 1, 32) ~= epoch then return nil, {-2} end
  local mark = tonumber(sub(meta, 33, 48))
  if mark < tonumber(seen) then return nil, {-3} end
  return mark
end

-- Raises the mark. Every write does, so that a write that was lost is missed.
local function raise(shard, mark, now)
  mark = math.max(mark + 1, now)
  redis.call('SETRANGE', shard, 32, pad(mark))
  return mark
end

-- Redis removes a finished record by itself a week after it may be forgotten. On time, a purge does:
-- what Redis removes is gone for good, and a clock that was ahead for a day must not take records
-- with it that are due tomorrow.
local WEEK = 604800000
local function expire(record, forget)
  if forget < LAST then
    redis.call('PEXPIREAT', record, string.format('%.0f', math.floor(forget / 1000) + WEEK))
  end
end
