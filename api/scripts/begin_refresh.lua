-- Mark the hash: any settle, transfer or adjust before the commit removes the mark and makes it void.
-- KEYS[1] credit; ARGV[1] token. Returns the names of its fields.
redis.call('HSET', KEYS[1], 'token', ARGV[1])
-- A copy that no call uses afterwards goes away; reserve.lua gives it a day.
redis.call('EXPIRE', KEYS[1], 60, 'NX')
return redis.call('HKEYS', KEYS[1])
