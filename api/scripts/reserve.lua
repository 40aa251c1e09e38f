-- Take credit and limits for one call, all or nothing. A refused call changes nothing.
--
-- KEYS[1]   credit:{organization}: a hash: `available` (nano-units a new call may still hold), and one field per running
--           call, request id -> "hold:start in ms:input tokens:output tokens|plan", the last three as it reserved them
-- KEYS[2]   counts:{organization}: its counters (counters.lua)
-- ARGV      request id, hold, lease in ms, input tokens, output tokens, plan ('' without limits)
-- returns   {"ok", {id of each quota without room}, now in us, the values of the plan's counters, packed}
--           {"limit", quota id, remaining, reset in ms}: of those without room, the one that was made first
--           {"credit", available}
--           {"unknown", quota ids …}: windows that have to be loaded from PostgreSQL; 0 is the credit
local request_id, hold, lease_ms, plan = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[6]
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)
local floor, ceil, max = math.floor, math.ceil, math.max

if redis.call('HEXISTS', KEYS[1], 'available') == 0 then return {'unknown', 0} end

local exceeded, unknown, leases = {}, {'unknown'}, {}
local opened, refusal
local furthest = now_us

local function has_no_room(is_hard, quota_id, remaining, reset_ms)
  if not is_hard then
    exceeded[#exceeded + 1] = quota_id
  elseif not refusal or quota_id < refusal[2] then
    refusal = {'limit', quota_id, remaining, reset_ms}
  end
end

if plan ~= '' then
  local amounts = amounts_of(1, ARGV[4], ARGV[5], hold)
  opened = open(KEYS[2], plan)
  local forms, kinds, sizes, values = opened.forms, opened.kinds, opened.sizes, opened.values
  local full_us = now_us + MINUTE_US
  for index = 1, opened.total do
    local form, size, amount, value = forms[index], sizes[index], amounts[kinds[index]], values[index]
    if form < HARD_WINDOW then
      -- A bucket of one minute's limit that fills evenly. A call larger than the bucket needs it full, and overdraws it.
      if value < now_us then value = now_us end
      -- What a soft limit let through must not count for ever.
      if form == SOFT_BUCKET and value > full_us then value = full_us end
      local took = amount * size
      local needed = took < MINUTE_US and took or MINUTE_US
      if value + needed > full_us + 0.000001 * size or size == 0 then
        local left, wait_us = 0, MINUTE_US
        if size > 0 then left, wait_us = (full_us - value) / size, value + needed - full_us end
        has_no_room(
          form ~= SOFT_BUCKET, floor(counter_at(opened, index) / DAYS), max(0, floor(left)), ceil(wait_us / 1000)
        )
      end
      value = value + took
      if value > furthest then furthest = value end
      values[index] = value
    elseif value < 0 then
      unknown[#unknown + 1] = floor(counter_at(opened, index) / DAYS)
    else
      if value + amount > size then
        has_no_room(form == HARD_WINDOW, floor(counter_at(opened, index) / DAYS), max(0, size - value), -1)
      end
      values[index] = value + amount
    end
  end
  local lease_count, position = struct.unpack('<B', plan, opened.position)
  for _ = 1, lease_count do
    local key, is_hard, limit, quota_id
    key, is_hard, limit, quota_id, position = struct.unpack('<Hc0Bdd', plan, position)
    local running = redis.call('ZCARD', key)
    if running >= limit then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
      running = redis.call('ZCARD', key)
      if running >= limit then has_no_room(is_hard == 1, quota_id, 0, -1) end
    end
    leases[#leases + 1] = key
  end
end
if #unknown > 1 then return unknown end
if refusal then return refusal end

-- HINCRBY is exact over 64 bits where a Lua number is not; only the sign is looked at.
-- ("-0" is no number to the server.)
local available = redis.call('HINCRBY', KEYS[1], 'available', hold == '0' and '0' or '-' .. hold)
if available < 0 then
  redis.call('HINCRBY', KEYS[1], 'available', hold)
  return {'credit', redis.call('HGET', KEYS[1], 'available')}
end
local call = hold .. ':' .. whole(now_ms) .. ':' .. ARGV[4] .. ':' .. ARGV[5] .. '|' .. plan
redis.call('HSET', KEYS[1], request_id, call)
redis.call('EXPIRE', KEYS[1], IDLE_S)
local packed = opened and save(KEYS[2], opened, 'EX', IDLE_S + ceil((furthest - now_us) / 1000000)) or ''
for _, key in ipairs(leases) do
  redis.call('ZADD', key, now_ms + lease_ms, request_id)
  redis.call('EXPIRE', key, ceil(lease_ms / 1000) + 60)
end
return {'ok', exceeded, now_us, packed}
