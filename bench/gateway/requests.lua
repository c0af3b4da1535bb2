-- The requests of `cargo xtask bench gateway`, for wrk.
--
-- wrk ... -s requests.lua -- KIND NAME COUNT PAUSE
--   KIND   get, post (no key), new (a new key each), again (one of COUNT keys), hot (one key)
--   NAME   what the keys of this run begin with
--   PAUSE  how long a connection rests between two requests, in milliseconds on average; 0 is not at all
--
-- Requests are put together as cheaply as possible: what the generator takes, the servers lack.

local kind, name, count, pause
local head, tail
local ready = {}
local number = 0

local body = '{"amount":1000,"currency":"EUR","customer":"cus_8fj2","note":"order 1042"}'

function init(args)
  kind, name, count, pause = args[1], args[2], tonumber(args[3]), tonumber(args[4])
  math.randomseed(os.time())
  wrk.headers["Content-Type"] = "application/json"
  wrk.headers["Authorization"] = "Bearer bench"
  if kind == "get" then
    ready[1] = wrk.format("GET", "/v1/charges/1042")
  elseif kind == "post" then
    ready[1] = wrk.format("POST", "/v1/charges", wrk.headers, body)
  elseif kind == "new" then
    -- A number of nine digits stands for all others: only it changes.
    wrk.headers["Idempotency-Key"] = name .. "-123456789"
    local whole = wrk.format("POST", "/v1/charges", wrk.headers, body)
    local from, to = string.find(whole, "123456789", 1, true)
    head, tail = string.sub(whole, 1, from - 1), string.sub(whole, to + 1)
    number = 100000000 + math.random(0, 700000000)
  else
    for n = 1, (kind == "hot") and 1 or count do
      wrk.headers["Idempotency-Key"] = name .. "-" .. n
      ready[n] = wrk.format("POST", "/v1/charges", wrk.headers, body)
    end
  end
  if pause > 0 then
    -- Connections that rest equally long would come all at once.
    delay = function() return math.random(0, 2 * pause) end
  end
end

function request()
  number = number + 1
  if kind == "new" then
    return head .. number .. tail
  end
  return ready[number % #ready + 1]
end
