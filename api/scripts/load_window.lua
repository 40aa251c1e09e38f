-- Set what is used of a window, where it is not known. KEYS[1] use; ARGV: scope, counter, used.
local counter, packed = tonumber(ARGV[2]), redis.call('HGET', KEYS[1], ARGV[1]) or ''
for position = 1, #packed, SLOT_BYTES do
  local other, value = struct.unpack('<dd', packed, position)
  if other == counter and value >= 0 then return 0 end
end
-- Before one that says that it is not known.
packed = struct.pack('<dd', counter, tonumber(ARGV[3])) .. packed
redis.call('HSETEX', KEYS[1], 'EX', IDLE_S, 'FIELDS', 1, ARGV[1], packed)
return 1
