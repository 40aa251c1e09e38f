-- Give back what a call held and charge what it cost. A repeat, or a call that a refresh already closed, charges nothing.
--
-- KEYS as in reserve.lua. ARGV: request id, cost, id of the leases, then per limit: form, limit, amount reserved, amount
-- used.
-- returns 1 when it was applied, 0 when the call was not running.
local request_id, cost, lease_id = ARGV[1], ARGV[2], ARGV[3]
local held = redis.call('HGET', KEYS[1], request_id)
redis.call('HDEL', KEYS[1], request_id, 'token')
if held then
  redis.call('HINCRBY', KEYS[1], 'available', string.match(held, '^%d+'))
  -- "-0" is no number to the server.
  if cost ~= '0' then redis.call('HINCRBY', KEYS[1], 'available', '-' .. cost) end
end
for index = 2, #KEYS do
  local key, base = KEYS[index], 3 + (index - 2) * 4
  local form, limit, reserved, used = ARGV[base + 1], tonumber(ARGV[base + 2]), ARGV[base + 3], ARGV[base + 4]
  if form == 'lease' then
    redis.call('ZREM', key, lease_id)
  elseif held and limit > 0 and reserved ~= used and redis.call('EXISTS', key) == 1 then
    local unused = tonumber(reserved) - tonumber(used)
    if form == 'window' then
      redis.call('HINCRBY', key, 'used', string.format('%.0f', -unused))
    else
      local at = tonumber(redis.call('HGET', key, 'at'))
      redis.call('HSET', key, 'at', string.format('%.0f', at - unused * 60000000 / limit))
    end
  end
end
return held and 1 or 0
