-- Mark the hash: any settle, transfer or adjust before the commit removes the mark and makes it void.
-- keys[1] credit; arguments: token. Returns the names of its fields.
local function begin_refresh(keys, arguments)
  redis.call('HSET', keys[1], 'token', arguments[1])
  -- A copy that no call uses afterwards goes away; reserve.lua prolongs it.
  redis.call('EXPIRE', keys[1], IDLE_S, 'NX')
  return redis.call('HKEYS', keys[1])
end
