-- The counters of limits: what reserve.lua, settle.lua, load_window.lua and commit_refresh.lua share.
--
-- counts:{organization} a hash: for each scope that limits calls (organization:1, api_key:7, project:3:a-model …) its
--                      slots, packed: a header, a value for each counter of the header, then pairs of a counter and its
--                      value for limits that were removed, and for windows that calls under way began in. A header is
--                      the number of counters and the counters. A value is when a bucket will be full again, in us; or
--                      what is used of a window; less than 0 where that is not known
-- live:{scope}         a sorted set of running calls by expiry of their leases in ms
--
-- A plan (api/counters.py packs it) lists the counters of a call: of each scope its name and header; then of all of
-- them in that order a column each of forms, kinds and sizes; then how many leases, and of each its key, 1 where it is
-- hard, limit, quota id; then its shape, if it has one (shapes.lua). Kinds are places in the amounts of a call: requests, input
-- tokens, output tokens, tokens, spend. The size of a window is its limit, that of a bucket the time in us that one
-- unit takes to come back, 0 where the limit is 0. A counter is the quota's id times HOURS, plus the hour (since 1970) in
-- which the window began.
--
-- Packed numbers in one hash cost a fraction of a field or a key for each (docs/adr/0131-counters-are-packed.md).
-- Numbers are exact up to 2^53: a spend of nine million in a window; above that a call may be rounded by a nano-unit.
--
-- What is here takes any plan and any state; a call with room in all its limits goes through shapes.lua.
local SOFT_BUCKET, HARD_WINDOW = 2, 3
local EXACT = 9007199254740992
local HOURS = 1048576
local MINUTE_US = 60000000
-- Counters that no call moves go away: windows are counted again from PostgreSQL, a full bucket needs no counter.
local IDLE_S = 86400
local PAIR, PAIR_BYTES = 'dd', 16
-- The newest are kept.
local SPARE_PAIRS = 16

-- Lua prints large numbers with an exponent; these are whole.
local function whole(number) return string.format('%.0f', number) end

local function amounts_of(requests, input, output, spend)
  return {requests + 0, input + 0, output + 0, input + output, spend + 0}
end

-- A running call: its hold and its start in ms; then of one that was reserved here its input and output tokens as it
-- reserved them, and where its plan begins; or of one that was loaded from PostgreSQL, nil twice and where that begins
-- which windows were loaded with of it (load_window.lua).
local function read_call(value)
  -- The rest may be long, so no pattern walks over it.
  local hold, since_ms, input, output, rest = string.match(value, '^(%d+):(%d+):(%d+):(%d+)|()')
  if not hold then hold, since_ms, rest = string.match(value, '^(%d+):(%d+)%*?()') end
  return hold, since_ms, input, output, rest
end

-- Counters and values of the packed slots of a scope, in their order.
local function pairs_of(packed)
  local found = {}
  if packed == '' then return found end
  local count = string.byte(packed)
  for index = 1, count do
    found[2 * index - 1] = struct.unpack('<d', packed, 8 * index - 6)
    found[2 * index] = struct.unpack('<d', packed, 8 * (count + index) - 6)
  end
  for position = 16 * count + 2, #packed, PAIR_BYTES do
    found[#found + 1], found[#found + 2] = struct.unpack('<dd', packed, position)
  end
  return found
end

-- The values of the header's counters, and the newest of the other pairs, both packed.
local function align(packed, header)
  local found, rest, order = {}, {}, pairs_of(packed)
  for place = 1, #order, 2 do found[order[place]] = found[order[place]] or order[place + 1] end
  local values = {}
  for index = 1, string.byte(header) do
    local counter = struct.unpack('<d', header, 8 * index - 6)
    values[index] = struct.pack('<d', found[counter] or -1)
    found[counter] = nil
  end
  for place = 1, #order, 2 do
    if found[order[place]] and #rest < SPARE_PAIRS then
      rest[#rest + 1] = struct.pack('<dd', order[place], found[order[place]])
      found[order[place]] = nil
    end
  end
  return table.concat(values), table.concat(rest)
end

-- A plan with the counters as they are: columns of forms, kinds, sizes and values in the plan's order.
local function open(key, plan)
  local scope_count, position = struct.unpack('<B', plan)
  local names, headers, total = {}, {}, 0
  for scope = 1, scope_count do
    names[scope], headers[scope], position = struct.unpack('<Hc0Hc0', plan, position)
    total = total + string.byte(headers[scope])
  end
  local opened = {names = names, headers = headers, rests = {}, total = total, position = position}
  if total == 0 then return opened end
  opened.forms = {string.byte(plan, position, position + total - 1)}
  opened.kinds = {string.byte(plan, position + total, position + 2 * total - 1)}
  opened.sizes = {struct.unpack('<' .. string.rep('d', total), plan, position + 2 * total)}
  opened.position = opened.sizes[total + 1]
  local packed = redis.call('HMGET', key, unpack(names))
  for scope = 1, scope_count do
    local header, whole_scope = headers[scope], packed[scope] or ''
    local last = 2 * #header - 1
    -- A plain search makes no string; a header stands nowhere but in front.
    if string.find(whole_scope, header, 1, true) == 1 then
      packed[scope] = string.sub(whole_scope, #header + 1, last)
      if #whole_scope > last then opened.rests[scope] = string.sub(whole_scope, last + 1) end
    else
      packed[scope], opened.rests[scope] = align(whole_scope, header)
    end
  end
  opened.values = {struct.unpack('<' .. string.rep('d', total), table.concat(packed))}
  return opened
end

-- The leases of a plan, which stand at `position`.
local function read_leases(plan, position)
  local leases, count = {}, string.byte(plan, position)
  position = position + 1
  for index = 1, count do
    local key, is_hard, limit, quota_id
    key, is_hard, limit, quota_id, position = struct.unpack('<Hc0Bdd', plan, position)
    leases[index] = {key = key, is_hard = is_hard == 1, limit = limit, quota_id = quota_id}
  end
  return leases
end

-- The counter at a place of the columns.
local function counter_at(opened, index)
  for _, header in ipairs(opened.headers) do
    local count = string.byte(header)
    if index <= count then return (struct.unpack('<d', header, 8 * index - 6)) end
    index = index - count
  end
end

-- Write the values back and return each scope's header and values, joined; `life` is EX and seconds, or KEEPTTL.
local function save(key, opened, ...)
  if opened.total == 0 then return '' end
  local packed = struct.pack('<' .. string.rep('d', opened.total), unpack(opened.values, 1, opened.total))
  local command, written, at = {'HSETEX', key, ...}, {}, 1
  local last = #command + 2
  command[last - 1], command[last] = 'FIELDS', #opened.names
  for scope, name in ipairs(opened.names) do
    local header = opened.headers[scope]
    local bytes = #header - 1
    written[scope] = header .. string.sub(packed, at, at + bytes - 1)
    command[last + 1] = name
    command[last + 2] = written[scope] .. (opened.rests[scope] or '')
    last, at = last + 2, at + bytes
  end
  redis.call(unpack(command))
  return table.concat(written)
end

-- Move the counters of a call from what it reserved to what it took. A counter that is not known stays so. `loaded`, of
-- a call that was loaded from PostgreSQL: what windows have of it, by counter.
local function correct(key, plan, reserved, used, loaded)
  if plan == '' then return end
  local missing, is_moved = {}, false
  for kind = 1, 5 do missing[kind] = used[kind] - reserved[kind] end
  local opened = open(key, plan)
  local forms, kinds, sizes, values = opened.forms, opened.kinds, opened.sizes, opened.values
  for index = 1, opened.total do
    local delta, value = missing[kinds[index]], values[index]
    if loaded then delta = delta - (loaded[counter_at(opened, index)] or 0) end
    if delta ~= 0 and value >= 0 then
      values[index] = forms[index] < HARD_WINDOW and value + delta * sizes[index] or value + delta
      is_moved = true
    end
  end
  -- Their life is that which the reservation gave them.
  if is_moved then save(key, opened, 'KEEPTTL') end
end

-- What windows were loaded with of a call: scope, counter, kind and amount of each.
local function each_loaded(loaded)
  local position = 1
  return function()
    if position > #loaded then return end
    local scope, counter, kind, amount
    scope, counter, kind, amount, position = struct.unpack('<Hc0dBd', loaded, position)
    return scope, counter, kind, amount
  end
end

-- Move the windows that were loaded with a call to what it took, where nobody has its plan any more.
local function correct_loaded(key, loaded, used)
  for scope, counter, kind, amount in each_loaded(loaded) do
    local packed = redis.call('HGET', key, scope) or ''
    local order = pairs_of(packed)
    local count, delta = packed ~= '' and string.byte(packed) or 0, used[kind] - amount
    for place = 1, #order, 2 do
      if order[place] == counter then
        if delta ~= 0 and order[place + 1] >= 0 then
          local index = (place + 1) / 2
          local at = index <= count and 8 * (count + index) - 6 or 16 * index - 6
          local value = struct.pack('<d', order[place + 1] + delta)
          packed = string.sub(packed, 1, at - 1) .. value .. string.sub(packed, at + 8)
          redis.call('HSETEX', key, 'KEEPTTL', 'FIELDS', 1, scope, packed)
        end
        break
      end
    end
  end
end
