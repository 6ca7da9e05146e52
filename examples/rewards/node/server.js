// A reward server in JavaScript: 1 if the last number of the response is the ground truth, else 0.
//   node server.js PORT [DATA_SOURCE…]     port 0: a free one; no data source: any
const path = require('path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const { HealthImplementation } = require('grpc-health-check');
const { ReflectionService } = require('@grpc/reflection');

const SERVICE = 'argosy.api.reward.v1.RewardService';
const LIMIT = 256;
const MAX_BYTES = 64 << 20; // of a message: gRPC's own default of 4 MB is too little
const [port = '0', ...sources] = process.argv.slice(2);

const definition = loader.loadSync('argosy/api/reward/v1/reward_service.proto', {
  includeDirs: [path.join(__dirname, '../../../protos')],
  keepCase: true,
  longs: String, // sample ids are 64-bit: numbers would round them
  defaults: true, // what is unset reads as zero …
  oneofs: true, // … and ground_truth says which of its two fields is set
});
const { RewardService } = grpc.loadPackageDefinition(definition).argosy.api.reward.v1;

function lastNumber(text) {
  const found = (text.match(/-?\d[\d,]*(?:\.\d+)?/g) ?? []).at(-1);
  return found === undefined || found.length > 64 ? undefined : Number(found.replaceAll(',', ''));
}

function truthOf(item) {
  if (item.ground_truth === undefined) throw new Error('there is no ground truth');
  const truth = item.ground_truth === 'ground_truth_json' ? JSON.parse(item.ground_truth_json) : item.ground_truth_text;
  const number = typeof truth === 'string' && truth.trim() ? Number(truth.replaceAll(',', '')) : truth;
  if (typeof number !== 'number' || !Number.isFinite(number)) throw new Error(`${JSON.stringify(truth)} is no number`);
  return number;
}

function judge(item) {
  if (sources.length && !sources.includes(item.data_source)) {
    return { failed: { reason: 'unknown_data_source', message: `no scorer for ${item.data_source}` } };
  }
  let truth;
  try {
    truth = truthOf(item);
  } catch (error) { // this item's outcome, never a 0, and never an error of the call
    return { failed: { reason: 'bad_ground_truth', message: String(error.message).slice(0, 200) } };
  }
  const number = lastNumber(item.response_text);
  const right = number === truth;
  return { scored: { score: right ? 1 : 0, parts: { acc: { flag: right }, pred: { text: String(number ?? '') } } } };
}

function score(call, answer) {
  const { items } = call.request;
  if (items.length > LIMIT) {
    return answer({ code: grpc.status.INVALID_ARGUMENT, details: `${items.length} items, at most ${LIMIT} are taken` });
  }
  const results = items.map((item) => ({ sample_id: item.sample_id, ...judge(item) }));
  const count = (kind) => results.filter((result) => kind in result).length;
  answer(null, { results, scored_count: count('scored'), failed_count: count('failed') });
}

function getCapabilities(call, answer) {
  answer(null, { data_sources: sources.length ? sources : ['*'], max_batch_size: LIMIT, name: 'node-example', version: '1' });
}

const server = new grpc.Server({ 'grpc.max_receive_message_length': MAX_BYTES, 'grpc.max_send_message_length': MAX_BYTES });
server.addService(RewardService.service, { Score: score, GetCapabilities: getCapabilities });
new HealthImplementation({ '': 'SERVING', [SERVICE]: 'SERVING' }).addToServer(server);
new ReflectionService(definition).addToServer(server);
// Loopback: calls are neither encrypted nor authenticated.
server.bindAsync(`127.0.0.1:${port}`, grpc.ServerCredentials.createInsecure(), (error, bound) => {
  if (error) throw error;
  console.log(`listening on 127.0.0.1:${bound}`);
});
process.on('SIGTERM', () => server.tryShutdown(() => process.exit(0)));
