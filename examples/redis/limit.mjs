// Counts in Redis with slidegate's scripts, without slidegate, and shares the keys of
//
//     slidegate serve --store redis://…
//
// for this rule (docs/reference/redis-wire-format.md documents the arguments and replies of the scripts):
//
//     rules: [{ name: per-client, per: [client], limits: [5/h] }]
//
//     npm install redis
//     node limit.mjs redis://127.0.0.1/ sliding_window alice [number of requests]
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createClient, RESP_TYPES } from 'redis'

const [PREFIX, MAX, WINDOW_US] = ['slidegate:', 5, 3_600_000_000]
// For each algorithm: its number in the script arguments, the time unit for a window of an hour (in microseconds), the
// resolution, the end of the key, and the parts of the script. All limits of a rule with the algorithm `sliding_window`
// share a key, as do those with `sliding_counter`. A `sliding_log` has a key of its own.
const ALGORITHMS = {
  sliding_window: [6, 1000, 32, ':sliding_window', ['base', 'logs', 'sliding_window', 'single_key']],
  sliding_log: [1, 10, 0, ':1h:sliding_log:1h', ['base', 'sliding_log', 'single_key']],
  sliding_counter: [3, 1000, 0, '', ['base', 'sliding_counter', 'single_slot']],
}

const lua = (file) => readFileSync(new URL(`../../crates/slidegate-redis/lua/${file}.lua`, import.meta.url), 'utf8')
const escape = (text) => encodeURIComponent(text)
  .replace(/[!*'()]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`)
  .replace(/%(2F|40|2B|3A)/g, decodeURIComponent)
const fnv1a = (text) => Buffer.from(text).reduce((hash, byte) => Math.imul(hash ^ byte, 0x01000193) >>> 0, 0x811c9dc5)

// Requests one unit. Returns whether it is allowed, the remaining units, and the retry delay in seconds.
async function take(connection, algorithm, client) {
  const [number, tickUs, resolution, keyEnd, parts] = ALGORITHMS[algorithm]
  const counter = `1h:${algorithm}:1h` // the limit's id, and its shape: algorithm and window
  // An IPv6 address is counted by its network, whose text is not escaped: {client=(2001:db8::/64)}.
  const key = `${PREFIX}default:per-client:{client=${escape(client)}}${keyEnd}`
  const argument = Buffer.alloc(61)
  argument.writeDoubleLE(-1, 0) // Redis reads its own clock
  argument.set([1, number, 0], 8) // 1: charge the unit if it fits; 0: the limit is enforced
  argument.writeUInt16LE(1, 11) // the first key
  // The tag, max, the resolution, and the key is kept one second longer than it is needed (1).
  for (const [nth, word] of [fnv1a(counter), MAX, resolution, 1].entries()) argument.writeUInt32LE(word, 13 + 4 * nth)
  // The time unit, the window in time units, a cost of one unit, and no offset of the window edges.
  for (const [nth, double] of [tickUs, WINDOW_US / tickUs, 1, 0].entries()) argument.writeDoubleLE(double, 29 + 8 * nth)
  const text = parts.map(lua).join('\n')
  const sha = createHash('sha1').update(text).digest('hex')
  const call = { keys: [key], arguments: [argument] }
  const reply = await connection.evalSha(sha, call).catch((error) => {
    if (!error.message.startsWith('NOSCRIPT')) throw error
    return connection.eval(text, call)
  })
  // `retry` is the delay until the next unit is available. It is also set if the last unit was charged.
  const [charged, remaining, retry] = [reply[0], reply.readDoubleLE(1), reply.readDoubleLE(17)]
  return { allowed: charged > 0, remaining, retry: retry / 1e6 }
}

const [address, algorithm, client, times = 1] = process.argv.slice(2)
const connection = createClient({ url: address }).withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer })
await connection.connect()
for (let nth = 0; nth < times; nth++) {
  const { allowed, remaining, retry } = await take(connection, algorithm, client)
  console.log(allowed ? `allowed, ${remaining} left` : `denied, try again in ${retry.toFixed(3)} s`)
}
connection.destroy()
