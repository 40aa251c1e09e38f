-- The balance moved by ARGV[1] for another reason than a settled call. An absent hash stays absent: it is loaded later.
if redis.call('HDEL', KEYS[1], 'token') == 0 and redis.call('HEXISTS', KEYS[1], 'available') == 0 then return 0 end
if redis.call('HEXISTS', KEYS[1], 'available') == 1 then redis.call('HINCRBY', KEYS[1], 'available', ARGV[1]) end
return 1
