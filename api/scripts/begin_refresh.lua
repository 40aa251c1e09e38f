-- Mark the hash: any settle, transfer or adjust before the commit removes the mark and makes it void.
-- KEYS[1] credit; ARGV[1] token. Returns the hash as it is, flat.
redis.call('HSET', KEYS[1], 'token', ARGV[1])
redis.call('EXPIRE', KEYS[1], 2592000)
return redis.call('HGETALL', KEYS[1])
