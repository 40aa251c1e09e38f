-- The short way of a call that has room in all its limits, and of its end: code made for the shape of its plan.
--
-- The shape of a plan is how many counters each scope has, and the form and kind of each; ids, names and sizes are
-- data. Organizations have few shapes. As code, with each counter a local, a limit costs a fifth of a turn of a loop
-- over tables (docs/adr/0154-a-shape-of-limits-is-code.md). The code reads the counters, moves them and writes them;
-- where anything is not as usual (a counter is not known, others stand in front, there may be no room) it writes
-- nothing and returns nothing, and the long way decides.
--
-- Plans are kept parsed and shapes compiled, in this server's memory. Both follow from the plan alone: to lose them, or
-- to have them on another server too, changes no answer.
local plans, plan_count, shapes, shape_count = {}, 0, {}, 0
local MOST_PLANS, MOST_SHAPES = 1000, 200
-- The last byte of a plan that ends in a shape and the number of its bytes; without limits of 0, which have no room.
local SHAPE_MARK = 255
-- Hashes and fields in use get their whole life again this often; at each call it would be dear.
local PROLONG_S = 3600
local lives, life_count = {}, 0
local MOST_LIVES = 10000

-- 'v1, v2, v3'
local function list(letter, first, last)
  local names = {}
  for index = first, last do names[#names + 1] = letter .. index end
  return table.concat(names, ', ')
end

-- A function (key, numbers, now_us, full_us, a1 … a5) that returns each scope's header and values, joined. `numbers`
-- are what the shape's format reads of a plan: name and header of each scope, forms and kinds, the sizes. a1 to a5 are
-- the amounts by kind, `move` has the code of each counter v with size s, `life` is KEEPTTL, or EX and seconds.
local function compile(counts, move, life)
  local lines, scope_count, heads, fields, written = {}, #counts, {}, {}, {}
  local function add(text, ...) lines[#lines + 1] = string.format(text, ...) end
  for scope = 1, scope_count do
    heads[scope] = string.format('n%d, h%d', scope, scope)
    fields[scope] = string.format('n%d, f%d', scope, scope)
    written[scope] = 'p' .. scope
  end
  add('return function(key, numbers, now_us, full_us, a1, a2, a3, a4, a5)')
  add('local %s, _, %s = unpack(numbers)', table.concat(heads, ', '), list('s', 1, #move))
  add("local fields = redis.call('HMGET', key, %s)", list('n', 1, scope_count))
  local last = 0
  for scope, count in ipairs(counts) do
    local first, bytes, doubles = last + 1, 16 * count + 1, string.rep('d', count)
    last = last + count
    add('local f%d = fields[%d]', scope, scope)
    add('if not f%d or #f%d < %d then return end', scope, scope, bytes)
    add("local g%d, %s = struct.unpack('<c%d%s', f%d)", scope, list('v', first, last), 8 * count + 1, doubles, scope)
    add('if g%d ~= h%d then return end', scope, scope)
    for index = first, last do lines[#lines + 1] = move[index] end
    add("local p%d = struct.pack('<c0%s', h%d, %s)", scope, doubles, scope, list('v', first, last))
    add('if #f%d == %d then f%d = p%d', scope, bytes, scope, scope)
    add('else f%d = p%d .. string.sub(f%d, %d) end', scope, scope, scope, bytes + 1)
  end
  add("redis.call('HSETEX', key, %s, 'FIELDS', '%d', %s)", life, scope_count, table.concat(fields, ', '))
  add('return %s end', table.concat(written, ' .. '))
  return loadstring(table.concat(lines, '\n'))()
end

-- `take` moves counters by what a call reserves, `take_on` prolongs their lives too, `give` moves them by what it took
-- less what it had reserved. The name of a shape: how many counters each scope has, then their forms, then their kinds.
local function make_shape(name, scope_count)
  local total, take, give = (#name - scope_count) / 2, {}, {}
  for index = 1, total do
    local form, kind = string.byte(name, scope_count + index), string.byte(name, scope_count + total + index)
    local names = {v = 'v' .. index, s = 's' .. index, a = 'a' .. kind}
    local function code(text) return (string.gsub(text, '%f[%w_][vsa]%f[^%w_]', names)) end
    if form < HARD_WINDOW then
      take[index] = code('if v < now_us then v = now_us end v = v + a * s if v > full_us then return end')
      give[index] = code('if v < 0 then return end v = v + a * s')
    else
      take[index] = code('if v < 0 then return end v = v + a if v > s then return end')
      give[index] = code('if v < 0 then return end v = v + a')
    end
  end
  local counts = {string.byte(name, 1, scope_count)}
  local keep, prolong = "'KEEPTTL'", string.format("'EX', '%d'", IDLE_S + MINUTE_US / 1000000)
  return {
    format = '<x' .. string.rep('Hc0Hc0', scope_count) .. 'c' .. 2 * total .. string.rep('d', total),
    take = compile(counts, take, keep),
    take_on = compile(counts, take, prolong),
    give = compile(counts, give, keep),
  }
end

local function shape_of(name, scope_count)
  if not shapes[name] then
    if shape_count == MOST_SHAPES then shapes, shape_count = {}, 0 end
    shapes[name], shape_count = make_shape(name, scope_count), shape_count + 1
  end
  return shapes[name]
end

-- A plan as the short way takes it: its `shape`, `numbers`, and `leases` where it has some; and until when its fields
-- need not be prolonged. Without a shape, only the long way is left.
local function plan_of(plan)
  local parsed = plans[plan]
  if parsed then return parsed end
  parsed = {prolong_s = 0}
  local shape_bytes, mark = string.byte(plan, -2, -1)
  if mark == SHAPE_MARK then
    parsed.shape = shape_of(string.sub(plan, -2 - shape_bytes, -3), string.byte(plan))
    parsed.numbers = {struct.unpack(parsed.shape.format, plan)}
    local leases = read_leases(plan, parsed.numbers[#parsed.numbers])
    parsed.leases = leases[1] and leases
  end
  if plan_count == MOST_PLANS then plans, plan_count = {}, 0 end
  plans[plan], plan_count = parsed, plan_count + 1
  return parsed
end

-- Whether the life of a hash is to be prolonged now.
local function is_life_due(key, now_s)
  if now_s < (lives[key] or 0) then return false end
  if life_count == MOST_LIVES then lives, life_count = {}, 0 end
  if not lives[key] then life_count = life_count + 1 end
  lives[key] = now_s + PROLONG_S
  return true
end
