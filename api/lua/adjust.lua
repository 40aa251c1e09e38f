-- The balance moved by arguments[1] for another reason than a settled call. An absent hash stays absent: it is loaded
-- later.
local function adjust(keys, arguments)
  if redis.call('HDEL', keys[1], 'token') == 0 and redis.call('HEXISTS', keys[1], 'available') == 0 then return 0 end
  if redis.call('HEXISTS', keys[1], 'available') == 1 then redis.call('HINCRBY', keys[1], 'available', arguments[1]) end
  return 1
end
