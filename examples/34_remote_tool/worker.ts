// A worker in another language: Temporal's own SDK, and a function that takes and returns plain JSON.
import { activityInfo } from '@temporalio/activity';
import { loadClientConnectConfig } from '@temporalio/envconfig';
import { NativeConnection, Worker } from '@temporalio/worker';

const prices: Record<string, number> = { Oslo: 140, Rome: 95 };

async function price({ city, nights = 1 }: { city: string; nights?: number }) {
  if (!(city in prices)) throw new Error(`we have no hotel in ${city}`); // the model is told
  return { city, euros: prices[city] * nights, quote: activityInfo().activityId }; // the same for every attempt
}

const { connectionOptions, namespace } = loadClientConnectConfig();
const connection = await NativeConnection.connect(connectionOptions);
const worker = await Worker.create({
  connection,
  namespace,
  taskQueue: process.argv[2] ?? 'prices',
  activities: { 'tool.price': price },
});
await worker.run();
