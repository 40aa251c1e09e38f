-- A call goes on under another request id (its next attempt): the hold follows. keys[1] credit; Arguments: old id, new
-- id.
local function transfer(keys, arguments)
  local held = redis.call('HGET', keys[1], arguments[1])
  if not held then return 0 end
  redis.call('HDEL', keys[1], arguments[1], 'token')
  redis.call('HSET', keys[1], arguments[2], held)
  return 1
end
