package memory

import (
	"container/heap"
	"time"
)

// schedule is a heap of entries by their time, then by their order of arrival.
type schedule []*entry

func (s *schedule) push(e *entry, when time.Time) {
	e.when = when
	heap.Push((*byTime)(s), e)
}

func (s *schedule) remove(e *entry) { heap.Remove((*byTime)(s), e.index) }

func (s *schedule) move(e *entry, when time.Time) {
	e.when = when
	heap.Fix((*byTime)(s), e.index)
}

// byTime implements heap.Interface, apart from schedule so that nothing calls its methods by mistake.
type byTime []*entry

func (h byTime) Len() int { return len(h) }

func (h byTime) Less(i, j int) bool {
	if c := h[i].when.Compare(h[j].when); c != 0 {
		return c < 0
	}
	return h[i].seq < h[j].seq
}

func (h byTime) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *byTime) Push(x any) {
	e := x.(*entry)
	e.index = len(*h)
	*h = append(*h, e)
}

func (h *byTime) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
