-- Give back what a call held and charge what it took. A repeat, or a call that a refresh already closed, moves nothing.
--
-- keys[1] credit, keys[2] counts. Arguments: request id, cost, id of the leases, requests, input tokens and output
-- tokens as limits count them, plan or "?", keys of its leases.
-- returns 1 when it was applied, 0 when the call was not running, 2 when nothing was done because the plan is not known
-- here: send it.
local function settle(keys, arguments)
  local key, request_id, cost = keys[1], arguments[1], arguments[2]
  local value = redis.call('HGET', key, request_id)
  local hold, input, output, rest, _
  if value then
    hold, _, input, output, rest = read_call(value)
    if not input and arguments[7] == '?' then return 2 end
  end
  redis.call('HDEL', key, request_id, 'token')
  for index = 8, #arguments do redis.call('ZREM', arguments[index], arguments[3]) end
  if not value then return 0 end
  if hold + 0 < EXACT and cost + 0 < EXACT then
    redis.call('HINCRBY', key, 'available', hold - cost)
  else
    redis.call('HINCRBY', key, 'available', hold)
    -- "-0" is no number to the server.
    if cost ~= '0' then redis.call('HINCRBY', key, 'available', '-' .. cost) end
  end

  if not input then
    -- A call that was loaded from PostgreSQL, after Valkey had lost it: windows that were loaded with it are corrected,
    -- to all other counters is added what it took.
    local by_counter = {}
    for _, counter, _, amount in each_loaded(string.sub(value, rest)) do by_counter[counter] = amount end
    local used = amounts_of(arguments[4], arguments[5], arguments[6], cost)
    correct(keys[2], arguments[7], amounts_of(0, 0, 0, 0), used, by_counter)
  elseif rest <= #value then
    local a1, a2, a3, a5 = arguments[4] - 1, arguments[5] - input, arguments[6] - output, cost - hold
    local shape = shape_of(value, rest)
    if not shape or not shape.give(keys[2], value, rest, nil, nil, a1, a2, a3, a2 + a3, a5) then
      local used = amounts_of(arguments[4], arguments[5], arguments[6], cost)
      correct(keys[2], string.sub(value, rest), amounts_of(1, input, output, hold), used)
    end
  end
  return 1
end
