-- Take credit and limits for one call, all or nothing. A refused call changes nothing.
--
-- KEYS[1]   credit:{organization}: a hash: `available` (nano-units a new call may still hold), and one field per running
--           call, request id -> "hold:lease start in ms"
-- KEYS[2..] one counter per limit: a hash of a token bucket (`at`: when it will be full again, in us), a hash of a
--           calendar window (`used`), or a sorted set of leases (request id by expiry in ms)
-- ARGV      request id, hold, lease in ms, then five per limit: form (bucket, window, lease), limit, amount, seconds
--           of life of the key, 1 where a call without room is refused (a hard limit), 0 where it is only counted
-- returns   {"ok", available, remaining and reset in ms of each limit …}; remaining is -1 where there was no room
--           {"limit", number of the limit (from 1), remaining, reset in ms}
--           {"credit", available}
--           {"unknown", number of the key (from 1) that has to be loaded from PostgreSQL}
local request_id, hold, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)
local MINUTE_US = 60000000

-- Lua prints large numbers with an exponent; these are whole.
local function whole(number) return string.format('%.0f', number) end

if redis.call('HEXISTS', KEYS[1], 'available') == 0 then return {'unknown', 1} end

local answer = {'ok', ''}
local updates = {}
for index = 2, #KEYS do
  local base = 3 + (index - 2) * 5
  local form, limit, amount = ARGV[base + 1], tonumber(ARGV[base + 2]), tonumber(ARGV[base + 3])
  local is_hard = ARGV[base + 5] == '1'
  local key, remaining, reset_ms = KEYS[index], 0, 0
  if form == 'bucket' then
    -- A bucket of one minute's limit that fills evenly. A call larger than the bucket needs it full, and overdraws it.
    local at = math.max(tonumber(redis.call('HGET', key, 'at') or 0), now_us)
    -- What a soft limit let through must not count for ever.
    if not is_hard then at = math.min(at, now_us + MINUTE_US) end
    local per_unit = limit > 0 and MINUTE_US / limit or 0
    local left = limit > 0 and (MINUTE_US - (at - now_us)) / per_unit or 0
    local needed = math.min(amount, limit)
    local has_room = limit > 0 and left + 0.000001 >= needed
    if is_hard and not has_room then
      local wait_us = limit > 0 and (needed - left) * per_unit or MINUTE_US
      return {'limit', index - 1, math.max(0, math.floor(left)), math.ceil(wait_us / 1000)}
    end
    local after = at + amount * per_unit
    remaining = has_room and math.max(0, math.floor(left - amount + 0.000001)) or -1
    reset_ms = math.ceil((after - now_us) / 1000)
    updates[#updates + 1] = {'HSET', key, 'at', whole(after)}
    updates[#updates + 1] = {'EXPIRE', key, math.ceil((after - now_us) / 1000000) + 60}
  elseif form == 'window' then
    local used = redis.call('HGET', key, 'used')
    if not used then return {'unknown', index} end
    remaining = limit - tonumber(used)
    local has_room = amount <= remaining
    if is_hard and not has_room then return {'limit', index - 1, math.max(0, remaining), -1} end
    remaining, reset_ms = has_room and remaining - amount or -1, -1
    updates[#updates + 1] = {'HINCRBY', key, 'used', ARGV[base + 3]}
  else
    if redis.call('ZCARD', key) >= limit then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
      local running = redis.call('ZCARD', key)
      if is_hard and running >= limit then return {'limit', index - 1, 0, -1} end
    end
    remaining = math.max(-1, limit - redis.call('ZCARD', key) - 1)
    updates[#updates + 1] = {'ZADD', key, now_ms + lease_ms, request_id}
    updates[#updates + 1] = {'EXPIRE', key, ARGV[base + 4]}
  end
  answer[#answer + 1] = remaining
  answer[#answer + 1] = reset_ms
end

-- HINCRBY is exact over 64 bits where a Lua number is not; only the sign is looked at.
-- ("-0" is no number to the server.)
local available = redis.call('HINCRBY', KEYS[1], 'available', hold == '0' and '0' or '-' .. hold)
if available < 0 then
  redis.call('HINCRBY', KEYS[1], 'available', hold)
  return {'credit', redis.call('HGET', KEYS[1], 'available')}
end
redis.call('HSET', KEYS[1], request_id, hold .. ':' .. whole(now_ms))
redis.call('EXPIRE', KEYS[1], 86400)
for _, update in ipairs(updates) do redis.call(unpack(update)) end
answer[2] = redis.call('HGET', KEYS[1], 'available')
return answer
