-- Set the credit to what PostgreSQL says, minus what runs, and correct the limits of calls that nobody settled. Void
-- when something moved it since `begin`.
--
-- keys[1] credit, keys[2] counts. Arguments: token, limit in nano-units (balance and credit limit, holds not deducted),
-- age in ms past which a hold without a record is dropped, number of closed calls, for each of them id, requests, input
-- tokens, output tokens and cost, then id and hold of each started record.
-- returns {"void"} or {"ok", available before ("" if none), available now}
local function commit_refresh(keys, arguments)
  local key = keys[1]
  if redis.call('HGET', key, 'token') ~= arguments[1] then return {'void'} end
  redis.call('HDEL', key, 'token')
  local time = redis.call('TIME')
  local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local closed = {}
  local first_started = 5 + 5 * tonumber(arguments[4])
  for index = 5, first_started - 1, 5 do
    local requests, input, output, cost = unpack(arguments, index + 1, index + 4)
    closed[arguments[index]] = amounts_of(requests, input, output, cost)
  end
  local started = {}
  for index = first_started, #arguments, 2 do started[arguments[index]] = arguments[index + 1] end

  -- "-0" is no number to the server.
  local function take(hold)
    if hold ~= '0' then redis.call('HINCRBY', key, 'available', '-' .. hold) end
  end

  local before = redis.call('HGET', key, 'available') or ''
  redis.call('HSET', key, 'available', arguments[2])
  local fields = redis.call('HGETALL', key)
  for index = 1, #fields, 2 do
    local id, value = fields[index], fields[index + 1]
    if id ~= 'available' then
      local hold, since_ms, input, output, rest = read_call(value)
      local is_lost = not started[id] and now_ms - since_ms > tonumber(arguments[3])
      if closed[id] or is_lost then
        redis.call('HDEL', key, id)
        local used = closed[id] or amounts_of(0, 0, 0, 0)
        rest = string.sub(value, rest)
        if input then
          correct(keys[2], rest, amounts_of(1, input, output, hold), used)
        else
          correct_loaded(keys[2], rest, used)
        end
      else
        take(hold)
      end
      started[id] = nil
    end
  end
  for id, hold in pairs(started) do
    redis.call('HSET', key, id, hold .. ':' .. string.format('%.0f', now_ms))
    take(hold)
  end
  return {'ok', before, redis.call('HGET', key, 'available')}
end
