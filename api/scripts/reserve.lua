-- Take credit and limits for one call, all or nothing. A refused call changes nothing.
--
-- KEYS[1]   credit:{organization}: a hash: `available` (nano-units a new call may still hold), and one field per running
--           call, request id -> "hold:start in ms:input tokens:output tokens:plan", the last three as it reserved them
-- KEYS[2]   use:{organization}: its counters (counters.lua)
-- ARGV      request id, hold, lease in ms, input tokens, output tokens, plan ('' without limits)
-- returns   {"ok", available, {id of each quota without room}, remaining and reset in ms of each hard bucket …}
--           {"limit", quota id, remaining, reset in ms}: of those without room, the one that was made first
--           {"credit", available}
--           {"unknown", quota ids …}: windows that have to be loaded from PostgreSQL; 0 is the credit
local request_id, hold, lease_ms, plan = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[6]
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now_ms = math.floor(now_us / 1000)
local floor, ceil, max = math.floor, math.ceil, math.max

if redis.call('HEXISTS', KEYS[1], 'available') == 0 then return {'unknown', 0} end

local answer, exceeded, unknown, leases = {'ok', '', {}}, {}, {'unknown'}, {}
local opened, refusal
local furthest = now_us

local function has_no_room(form, counter, remaining, reset_ms)
  local quota_id = floor(counter / DAYS)
  if form ~= HARD_BUCKET and form ~= HARD_WINDOW then
    exceeded[#exceeded + 1] = quota_id
  elseif not refusal or quota_id < refusal[2] then
    refusal = {'limit', quota_id, remaining, reset_ms}
  end
end

if plan ~= '' then
  local amounts = amounts_of(1, ARGV[4], ARGV[5], hold)
  opened = open(KEYS[2], plan)
  local limits, slots = opened.limits, opened.slots
  for index = 1, opened.total do
    local base, place = 4 * index, 2 * index
    local form, limit, amount, value = limits[base - 3], limits[base - 1], amounts[limits[base - 2]], slots[place]
    if form < HARD_WINDOW then
      -- A bucket of one minute's limit that fills evenly. A call larger than the bucket needs it full, and overdraws it.
      local at = value > now_us and value or now_us
      -- What a soft limit let through must not count for ever.
      if form == SOFT_BUCKET and at > now_us + MINUTE_US then at = now_us + MINUTE_US end
      local per_unit = limit > 0 and MINUTE_US / limit or 0
      local left = limit > 0 and (MINUTE_US - (at - now_us)) / per_unit or 0
      local needed = amount < limit and amount or limit
      local after = at + amount * per_unit
      if limit == 0 or left + 0.000001 < needed then
        local wait_us = limit > 0 and (needed - left) * per_unit or MINUTE_US
        has_no_room(form, limits[base], max(0, floor(left)), ceil(wait_us / 1000))
      end
      if form == HARD_BUCKET then
        answer[#answer + 1] = max(0, floor(left - amount + 0.000001))
        answer[#answer + 1] = ceil((after - now_us) / 1000)
      end
      if after > furthest then furthest = after end
      slots[place] = after
    elseif value < 0 then
      unknown[#unknown + 1] = floor(limits[base] / DAYS)
    else
      if value + amount > limit then has_no_room(form, limits[base], max(0, limit - value), -1) end
      slots[place] = value + amount
    end
  end
  local position = opened.position
  local lease_count
  lease_count, position = struct.unpack('<B', plan, position)
  for _ = 1, lease_count do
    local key, is_hard, limit, quota_id
    key, is_hard, limit, quota_id, position = struct.unpack('<Hc0Bdd', plan, position)
    local running = redis.call('ZCARD', key)
    if running >= limit then
      redis.call('ZREMRANGEBYSCORE', key, '-inf', now_ms)
      running = redis.call('ZCARD', key)
      if running >= limit then has_no_room(is_hard == 1 and HARD_WINDOW, quota_id * DAYS, 0, -1) end
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
local call = {hold, whole(now_ms), ARGV[4], ARGV[5], plan}
redis.call('HSET', KEYS[1], request_id, table.concat(call, ':'))
redis.call('EXPIRE', KEYS[1], IDLE_S)
if opened then save(KEYS[2], opened, 'EX', IDLE_S + ceil((furthest - now_us) / 1000000)) end
for _, key in ipairs(leases) do
  redis.call('ZADD', key, now_ms + lease_ms, request_id)
  redis.call('EXPIRE', key, ceil(lease_ms / 1000) + 60)
end
answer[2], answer[3] = redis.call('HGET', KEYS[1], 'available'), exceeded
return answer
