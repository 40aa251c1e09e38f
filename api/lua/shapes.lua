-- The short way of a call that has room in all its limits, and of its end: code made for the shape of its plan.
--
-- The shape of a plan is how many counters each scope has, and the form and kind of each; ids, names and sizes are
-- data. Organizations have few shapes. As code, with each counter a local, a limit costs a fifth of a turn of a loop
-- over tables (docs/adr/0154-a-shape-of-limits-is-code.md). The code reads the counters, moves them and writes them;
-- where anything is not as usual (a counter is not known, others stand in front, there may be no room) it writes
-- nothing and returns nothing, and the long way decides.
--
-- The code of shapes is kept in this server's memory. It follows from the plan alone: to lose it, or to have it on another
-- server too, changes no answer. Plans are not kept: read anew, they cost as much with half a million keys as with one.
local shapes, shape_count = {}, 0
local MOST_SHAPES = 200
-- What a plan with a shape ends in; before it the bytes of the shape, and where its leases are, or 0. Those of older
-- versions end otherwise, and go the long way.
local SHAPE_MARK = 254
-- A hash of credit in use gets its whole life again this often; at each call it would be dear.
local PROLONG_S = 3600
local lives, life_count = {}, 0
local MOST_LIVES = 10000

-- 'v1, v2, v3'
local function list(letter, first, last)
  local names = {}
  for index = first, last do names[#names + 1] = letter .. index end
  return table.concat(names, ', ')
end

-- A function (key, text, position, now_us, full_us, a1 … a5) that returns each scope's header and values, joined. The
-- plan begins at `position` of the text and goes to its end. a1 to a5 are the amounts by kind, `move` has the code of each
-- counter v with size s, `life` is KEEPTTL, or EX and seconds.
local function compile(counts, move, life)
  local lines, scope_count, heads, fields, written = {}, #counts, {}, {}, {}
  local function add(text, ...) lines[#lines + 1] = string.format(text, ...) end
  for scope = 1, scope_count do
    heads[scope] = string.format('n%d, h%d', scope, scope)
    fields[scope] = string.format('n%d, f%d', scope, scope)
    written[scope] = 'p' .. scope
  end
  add('return function(key, text, position, now_us, full_us, a1, a2, a3, a4, a5)')
  add(
    "local %s, _, %s = struct.unpack('<x%sc%d%s', text, position)", table.concat(heads, ', '), list('s', 1, #move),
    string.rep('Hc0Hc0', scope_count), 2 * #move, string.rep('d', #move)
  )
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

-- `take` moves counters by what a call reserves and gives them their whole life again; `give` moves them by what it took
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
  local life = string.format("'EX', '%d'", IDLE_S + MINUTE_US / 1000000)
  return {take = compile(counts, take, life), give = compile(counts, give, "'KEEPTTL'")}
end

-- The shape of the plan at `position`, and where its leases are, or 0. Without a shape, only the long way is left.
local function shape_of(text, position)
  local low, high, bytes, mark = string.byte(text, -4, -1)
  if mark ~= SHAPE_MARK then return end
  local name, scope_count = string.sub(text, -4 - bytes, -5), string.byte(text, position)
  local shape = shapes[name]
  if not shape then
    if shape_count == MOST_SHAPES then shapes, shape_count = {}, 0 end
    shape = make_shape(name, scope_count)
    shapes[name], shape_count = shape, shape_count + 1
  end
  return shape, low + 256 * high
end

-- Whether the life of a hash is to be prolonged now.
local function is_life_due(key, now_s)
  if now_s < (lives[key] or 0) then return false end
  if life_count == MOST_LIVES then lives, life_count = {}, 0 end
  if not lives[key] then life_count = life_count + 1 end
  lives[key] = now_s + PROLONG_S
  return true
end
