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
// For each algorithm: the time unit for a window of an hour (in microseconds), the
// resolution, the end of the key, and the parts of the script. All limits of a rule with the algorithm `sliding_window`
// share a key, as do those with `sliding_counter`. A `sliding_log` has a key of its own.
const ALGORITHMS = {
  sliding_window: [1000, 32, ':log', ['base', 'logs', 'sliding_window', 'single_log']],
  sliding_log: [10, 0, ':1h:sliding_log:1h', ['base', 'sliding_log', 'single_key']],
  sliding_counter: [1000, 0, '', ['base', 'sliding_counter', 'single_slot']],
}

const lua = (file) => readFileSync(new URL(`../../crates/slidegate-redis/lua/${file}.lua`, import.meta.url), 'utf8')
const escape = (text) => encodeURIComponent(text)
  .replace(/[!*'()]/g, (one) => `%${one.charCodeAt(0).toString(16).toUpperCase()}`)
  .replace(/%(2F|40|2B|3A)/g, decodeURIComponent)
const fnv1a = (text) => Buffer.from(text).reduce((hash, byte) => Math.imul(hash ^ byte, 0x01000193) >>> 0, 0x811c9dc5)

// Requests one unit. Returns whether it is allowed, the remaining units, and the retry delay in seconds.
async function take(connection, algorithm, client) {
  const [tickUs, resolution, keyEnd, parts] = ALGORITHMS[algorithm]
  const counter = `1h:${algorithm}:1h` // the limit's id, and its shape: algorithm and window
  // An IPv6 address is counted by its network, whose text is not escaped: {client=(2001:db8::/64)}.
  const key = `${PREFIX}default:per-client:{client=${escape(client)}}${keyEnd}`
  // -1: Redis reads its own clock. First 1: charge the unit if it fits. Second 1: the cost. The time unit, and the window
  // in time units. 0: no offset of the window edges. Last 1: the key is kept one second longer than it is needed.
  const numbers = [-1, 1, fnv1a(counter), 1, MAX, tickUs, WINDOW_US / tickUs, resolution, 0, 1]
  const argument = Buffer.alloc(80)
  for (const [nth, number] of numbers.entries()) argument.writeDoubleLE(number, 8 * nth)
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
