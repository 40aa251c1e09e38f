-- A call goes on under another request id (its next attempt): the hold follows. KEYS[1] credit; ARGV: old id, new id.
local held = redis.call('HGET', KEYS[1], ARGV[1])
if not held then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1], 'token')
redis.call('HSET', KEYS[1], ARGV[2], held)
return 1
