-- Set what is used of a window, where it is not known, and remember which part of it each running call is that was
-- loaded from PostgreSQL too, so that its end corrects it.
--
-- keys[1] credit, keys[2] counts. Arguments: scope, counter, kind, used, 1 for the last attempt, then id and amount of
-- each such call, whether it has ended meanwhile or not.
-- returns 1, or 0 where it was known; -1 when one of the calls has been settled since PostgreSQL was read: read it
-- again. At the last attempt it counts as it was then: too much, until the window ends.
local function load_window(keys, arguments)
  local scope, counter, kind = arguments[1], tonumber(arguments[2]), tonumber(arguments[3])
  local packed = redis.call('HGET', keys[2], scope) or ''
  local order = pairs_of(packed)
  for place = 1, #order, 2 do
    if order[place] == counter and order[place + 1] >= 0 then return 0 end
  end
  local calls = {}
  for index = 6, #arguments, 2 do
    calls[index] = redis.call('HGET', keys[1], arguments[index])
    if not calls[index] and arguments[5] ~= '1' then return -1 end
  end
  for index = 6, #arguments, 2 do
    local hold, since_ms, input, rest, _
    if calls[index] then hold, since_ms, input, _, rest = read_call(calls[index]) end
    if hold and not input then
      rest = string.sub(calls[index], rest) .. struct.pack('<Hc0dBd', #scope, scope, counter, kind, tonumber(arguments[index + 1]))
      redis.call('HSET', keys[1], arguments[index], hold .. ':' .. since_ms .. '*' .. rest)
    end
  end
  -- In place of what says that it is not known, else in front of the pairs behind the header.
  local value, is_placed = struct.pack('<d', tonumber(arguments[4])), false
  local count = packed ~= '' and string.byte(packed) or 0
  if packed == '' then packed = string.char(0) end
  for index = 1, count do
    if order[2 * index - 1] == counter then
      local at = 8 * (count + index) - 6
      packed = string.sub(packed, 1, at - 1) .. value .. string.sub(packed, at + 8)
      is_placed = true
    end
  end
  if not is_placed then
    local first = 16 * count + 2
    packed = string.sub(packed, 1, first - 1) .. struct.pack('<d', counter) .. value .. string.sub(packed, first)
  end
  redis.call('HSETEX', keys[2], 'EX', IDLE_S, 'FIELDS', 1, scope, packed)
  return 1
end
