package consistenthash

import "hash/fnv"

// hash returns the partition, 0 to count-1, of a key: the key's bytes through FNV-1a with 64 bits, and its result through the jump
// consistent hash of Lamping and Veach (https://arxiv.org/abs/1406.2294). Both are short, published and the same in every
// language, so that other programs can publish to the partitions. The result must never change: it decides where messages are that
// already wait.
//
// With one partition more only the keys that move to the new one change, 1/count of all.
func hash(key string, count int) int {
	h := fnv.New64a()
	h.Write([]byte(key)) // never fails
	return jump(h.Sum64(), count)
}

func jump(key uint64, count int) int {
	at, next := int64(-1), int64(0)
	for next < int64(count) {
		at = next
		key = key*2862933555777941757 + 1
		next = int64(float64(at+1) * (float64(int64(1)<<31) / float64(key>>33+1)))
	}
	return int(at)
}
