-- What reserve.lua, settle.lua, load_window.lua and commit_refresh.lua share: the counters of limits. It is put before
-- each of them.
--
-- use:{organization}   a hash: for each scope that limits calls (organization:1, api_key:7, project:3:a-model …) its slots,
--                      packed: which counter, and its value: when a bucket will be full again, in us; or what is used of
--                      a window; less than 0 where that is not known
-- live:{scope}         a sorted set of running calls by expiry of their leases in ms
--
-- A plan (api/counters.py packs it) lists the counters of a call: of each scope its name and number of limits; of each
-- limit, in the same order, form, kind, limit, counter; of each lease its key, 1 where it is hard, limit, quota id. Kinds
-- are places in the amounts of a call: requests, input tokens, output tokens, tokens, spend. A counter is the quota's id
-- times DAYS, plus the number of the day when the window began.
--
-- Packed numbers in one hash cost a fraction of a field or a key for each (docs/adr/0131-counters-are-packed.md). They
-- are exact up to 2^53: a spend of nine million in a window; above that a call may be rounded by a nano-unit.
local HARD_BUCKET, SOFT_BUCKET, HARD_WINDOW = 1, 2, 3
local DAYS = 1048576
local MINUTE_US = 60000000
-- Counters that no call moves go away: windows are counted again from PostgreSQL, a full bucket needs no counter.
local IDLE_S = 86400
local LIMIT, SLOT, SLOT_BYTES = 'BBdd', 'dd', 16
-- Slots of limits that were removed, and of windows that calls under way began in. The newest are kept.
local SPARE_SLOTS = 16

-- Lua prints large numbers with an exponent; these are whole.
local function whole(number) return string.format('%.0f', number) end

local function amounts_of(requests, input, output, spend)
  input, output = tonumber(input), tonumber(output)
  return {tonumber(requests), input, output, input + output, tonumber(spend)}
end

-- The hold of a running call, and what it reserved of limits: nil for one that was loaded from PostgreSQL.
local function read_call(value)
  local hold, since_ms, input, output, plan = string.match(value, '^(%d+):(%d+):(%d+):(%d+):(.*)$')
  if hold then return hold, tonumber(since_ms), amounts_of(1, input, output, hold), plan end
  hold, since_ms = string.match(value, '^(%d+):(%d+)$')
  return hold, tonumber(since_ms)
end

-- The slots of `count` counters in the plan's order, then the newest of the others.
local function align(packed, limits, first, count)
  local found, spare, values = {}, {}, {struct.unpack('<' .. string.rep(SLOT, #packed / SLOT_BYTES), packed)}
  local aligned = {}
  for place = 1, #values - 1, 2 do found[values[place]] = found[values[place]] or values[place + 1] end
  for index = first, first + count - 1 do
    local counter = limits[4 * index]
    aligned[#aligned + 1] = struct.pack('<dd', counter, found[counter] or -1)
    found[counter] = nil
  end
  for place = 1, #values - 1, 2 do
    if found[values[place]] and #spare < SPARE_SLOTS then
      spare[#spare + 1] = struct.pack('<dd', values[place], values[place + 1])
    end
  end
  return table.concat(aligned), table.concat(spare)
end

-- A plan with the counters as they are: its scopes, limits (four numbers each) and slots (two each), in the same order.
local function open(key, plan)
  local scope_count, position = struct.unpack('<B', plan)
  local opened = {names = {}, counts = {}, spares = {}, total = 0, scope_count = scope_count}
  local names, counts, total = opened.names, opened.counts, 0
  for scope = 1, scope_count do
    names[scope], counts[scope], position = struct.unpack('<Hc0B', plan, position)
    total = total + counts[scope]
  end
  opened.total, opened.position = total, position
  if total == 0 then return opened end
  local limits = {struct.unpack('<' .. string.rep(LIMIT, total), plan, position)}
  opened.limits, opened.position = limits, limits[4 * total + 1]
  local packed, is_aligned = redis.call('HMGET', key, unpack(names)), true
  for scope = 1, scope_count do
    local bytes = counts[scope] * SLOT_BYTES
    if packed[scope] and #packed[scope] > bytes then
      opened.spares[scope] = string.sub(packed[scope], bytes + 1)
      packed[scope] = string.sub(packed[scope], 1, bytes)
    elseif not packed[scope] or #packed[scope] < bytes then
      packed[scope], is_aligned = packed[scope] or '', false
    end
  end
  local slots = is_aligned and {struct.unpack('<' .. string.rep(SLOT, total), table.concat(packed))}
  for index = 1, total do
    if not is_aligned then break end
    is_aligned = slots[2 * index - 1] == limits[4 * index]
  end
  if not is_aligned then
    local first = 1
    for scope = 1, scope_count do
      local whole_scope = packed[scope] .. (opened.spares[scope] or '')
      packed[scope], opened.spares[scope] = align(whole_scope, limits, first, counts[scope])
      first = first + counts[scope]
    end
    slots = {struct.unpack('<' .. string.rep(SLOT, total), table.concat(packed))}
  end
  opened.slots = slots
  return opened
end

-- Write the slots back; `life` is EX and seconds, or KEEPTTL.
local function save(key, opened, ...)
  if opened.total == 0 then return end
  local packed = struct.pack('<' .. string.rep(SLOT, opened.total), unpack(opened.slots, 1, 2 * opened.total))
  local command, at = {'HSETEX', key, ...}, 1
  local last = #command
  command[last + 1], command[last + 2] = 'FIELDS', opened.scope_count
  last = last + 2
  for scope = 1, opened.scope_count do
    local bytes = opened.counts[scope] * SLOT_BYTES
    command[last + 1] = opened.names[scope]
    command[last + 2] = string.sub(packed, at, at + bytes - 1) .. (opened.spares[scope] or '')
    last, at = last + 2, at + bytes
  end
  redis.call(unpack(command))
end

-- Move the counters of a call from what it reserved to what it took. A counter that is not known stays so.
local function correct(key, plan, reserved, used)
  if plan == '' then return end
  local missing, is_moved = {}, false
  for kind = 1, 5 do missing[kind] = used[kind] - reserved[kind] end
  local opened = open(key, plan)
  local limits, slots = opened.limits, opened.slots
  for index = 1, opened.total do
    local base, place = 4 * index, 2 * index
    local delta, limit = missing[limits[base - 2]], limits[base - 1]
    if delta ~= 0 and limit > 0 and slots[place] >= 0 then
      if limits[base - 3] < HARD_WINDOW then delta = delta * MINUTE_US / limit end
      slots[place], is_moved = slots[place] + delta, true
    end
  end
  -- Their life is that which the reservation gave them.
  if is_moved then save(key, opened, 'KEEPTTL') end
end
