-- Take credit and limits for one call, all or nothing. A refused call changes nothing.
--
-- keys[1]    credit:{organization}: a hash: `available` (nano-units a new call may still hold), and one field per running
--            call, id -> "hold:start in ms:input tokens:output tokens|plan", the last three as it reserved them
-- keys[2]    counts:{organization}: its counters (counters.lua)
-- arguments  request id, hold, lease in ms, input tokens, output tokens, plan ('' without limits)
-- returns    packed: now in us, header and values of each scope of the plan, id of each quota without room
--            {"limit", quota id, remaining, reset in ms}: of those without room, the one that was made first
--            {"credit", available}
--            {"unknown", quota ids …}: windows that have to be loaded from PostgreSQL; 0 is the credit

-- Whether a lease has room; those that lapsed make some.
local function has_lease(lease, now_ms)
  if redis.call('ZCARD', lease.key) < lease.limit then return true end
  redis.call('ZREMRANGEBYSCORE', lease.key, '-inf', now_ms)
  return redis.call('ZCARD', lease.key) < lease.limit
end

local function have_leases(leases, now_ms)
  for _, lease in ipairs(leases) do
    if not has_lease(lease, now_ms) then return false end
  end
  return true
end

-- The long way: of any plan in any state. Returns the counters as moved, which are not written yet, the leases, the
-- quotas without room that refuse nothing, and the refusal.
local function judge(key, plan, amounts, now_us)
  local floor, ceil, max = math.floor, math.ceil, math.max
  local opened, exceeded, unknown, refusal = open(key, plan), {}, {'unknown'}, nil
  local furthest, full_us = now_us, now_us + MINUTE_US

  local function has_no_room(is_hard, quota_id, remaining, reset_ms)
    if not is_hard then
      exceeded[#exceeded + 1] = quota_id
    elseif not refusal or quota_id < refusal[2] then
      refusal = {'limit', quota_id, remaining, reset_ms}
    end
  end

  local forms, kinds, sizes, values = opened.forms, opened.kinds, opened.sizes, opened.values
  for index = 1, opened.total do
    local form, size, amount, value = forms[index], sizes[index], amounts[kinds[index]], values[index]
    if form < HARD_WINDOW then
      -- A bucket of one minute's limit that fills evenly. A call larger than the bucket needs it full, and overdraws
      -- it.
      if value < now_us then value = now_us end
      -- What a soft limit let through must not count for ever.
      if form == SOFT_BUCKET and value > full_us then value = full_us end
      local took = amount * size
      local needed = took < MINUTE_US and took or MINUTE_US
      if value + needed > full_us + 0.000001 * size or size == 0 then
        local left, wait_us = 0, MINUTE_US
        if size > 0 then left, wait_us = (full_us - value) / size, value + needed - full_us end
        has_no_room(
          form ~= SOFT_BUCKET, floor(counter_at(opened, index) / HOURS), max(0, floor(left)), ceil(wait_us / 1000)
        )
      end
      value = value + took
      if value > furthest then furthest = value end
      values[index] = value
    elseif value < 0 then
      unknown[#unknown + 1] = floor(counter_at(opened, index) / HOURS)
    else
      if value + amount > size then
        has_no_room(form == HARD_WINDOW, floor(counter_at(opened, index) / HOURS), max(0, size - value), -1)
      end
      values[index] = value + amount
    end
  end
  local leases = read_leases(plan, opened.position)
  for _, lease in ipairs(leases) do
    if not has_lease(lease, floor(now_us / 1000)) then has_no_room(lease.is_hard, lease.quota_id, 0, -1) end
  end
  opened.life_s = IDLE_S + ceil((furthest - now_us) / 1000000)
  return opened, leases, exceeded, unknown[2] and unknown or refusal
end

local function reserve(keys, arguments)
  local key, request_id, hold, plan = keys[1], arguments[1], arguments[2], arguments[6]
  local available = redis.call('HGET', key, 'available')
  if not available then return {'unknown', 0} end
  local time = redis.call('TIME')
  local now_s, now_us = time[1] + 0, time[1] * 1000000 + time[2]

  -- Credit is exact over 64 bits, a number here is not: such credit is compared as text, and moved by the server.
  local is_exact, left = available + 0 < EXACT, available - hold
  local has_credit = left >= 0
  if not is_exact then has_credit = #available > #hold or #available == #hold and available >= hold end

  local written, exceeded, leases, now_ms = nil, '', {}, math.floor(now_us / 1000)
  if plan ~= '' then
    local input, output = arguments[4] + 0, arguments[5] + 0
    local shape, leases_at = shape_of(plan, 1)
    if shape and leases_at > 0 then leases = read_leases(plan, leases_at) end
    if shape and has_credit and have_leases(leases, now_ms) then
      written = shape.take(keys[2], plan, 1, now_us, now_us + MINUTE_US, 1, input, output, input + output, hold + 0)
    end
    if not written then
      local opened, over, refusal
      opened, leases, over, refusal = judge(keys[2], plan, amounts_of(1, input, output, hold), now_us)
      if refusal then return refusal end
      written = has_credit and save(keys[2], opened, 'EX', opened.life_s)
      for _, quota_id in ipairs(over) do exceeded = exceeded .. struct.pack('<d', quota_id) end
    end
  end
  if not has_credit then return {'credit', available} end

  local call = hold .. ':' .. time[1] .. '000:' .. arguments[4] .. ':' .. arguments[5] .. '|' .. plan
  if is_exact then
    redis.call('HSET', key, 'available', left, request_id, call)
  else
    if hold ~= '0' then redis.call('HINCRBY', key, 'available', '-' .. hold) end
    redis.call('HSET', key, request_id, call)
  end
  if is_life_due(key, now_s) then redis.call('EXPIRE', key, IDLE_S) end
  for _, lease in ipairs(leases) do
    redis.call('ZADD', lease.key, now_ms + arguments[3], request_id)
    redis.call('EXPIRE', lease.key, math.ceil(arguments[3] / 1000) + 60)
  end
  return struct.pack('<d', now_us) .. (written or '') .. exceeded
end
