-- Give back what a call held and charge what it took. A repeat, or a call that a refresh already closed, moves nothing.
--
-- KEYS[1] credit, KEYS[2] counts. ARGV: request id, cost, id of the leases, requests, input tokens and output tokens as limits
-- count them, plan or "?", keys of its leases.
-- returns 1 when it was applied, 0 when the call was not running, 2 when nothing was done because the plan is not known
-- here: send it.
local request_id, cost, lease_id, plan = ARGV[1], ARGV[2], ARGV[3], ARGV[7]
local value = redis.call('HGET', KEYS[1], request_id)
local hold, reserved, reserved_plan, loaded, _
if value then
  hold, _, reserved, reserved_plan, loaded = read_call(value)
  if loaded and plan == '?' then return 2 end
end
redis.call('HDEL', KEYS[1], request_id, 'token')
for index = 8, #ARGV do redis.call('ZREM', ARGV[index], lease_id) end
if not value then return 0 end
redis.call('HINCRBY', KEYS[1], 'available', hold)
-- "-0" is no number to the server.
if cost ~= '0' then redis.call('HINCRBY', KEYS[1], 'available', '-' .. cost) end
local used = amounts_of(ARGV[4], ARGV[5], ARGV[6], cost)
if reserved then
  correct(KEYS[2], reserved_plan, reserved, used)
else
  -- A call that was loaded from PostgreSQL, after Valkey had lost it: windows that were loaded with it are corrected, to
  -- all other counters is added what it took.
  local by_counter = {}
  for _, counter, _, amount in each_loaded(loaded) do by_counter[counter] = amount end
  correct(KEYS[2], plan, amounts_of(0, 0, 0, 0), used, by_counter)
end
return 1
