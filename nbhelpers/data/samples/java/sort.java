// SPDX-License-Identifier: Apache-2.0
// Family: put numbers into ascending order.
// Written for nbhelpers as a sample. A line "//@ NN" starts each method; see README.md.

//@ 01
public static void bubbleSort(int[] arr) {
    for (int i = 0; i < arr.length - 1; i++) {
        for (int j = 0; j < arr.length - 1 - i; j++) {
            if (arr[j] > arr[j + 1]) {
                int temp = arr[j];
                arr[j] = arr[j + 1];
                arr[j + 1] = temp;
            }
        }
    }
}

//@ 02
static int[] insertion(int[] original) {
    int[] arr = original.clone();
    for (int i = 1; i < arr.length; i++) {
        int key = arr[i];
        int j = i - 1;
        while (j >= 0 && arr[j] > key) {
            arr[j + 1] = arr[j];
            j--;
        }
        arr[j + 1] = key;
    }
    return arr;
}

//@ 03
void select(double[] arr)
{
    for (int i = 0; i < arr.length; i++)
    {
        int min = i;
        for (int j = i + 1; j < arr.length; j++)
            if (arr[j] < arr[min])
                min = j;
        double temp = arr[i];
        arr[i] = arr[min];
        arr[min] = temp;
    }
}

//@ 04
public static void qs(int[] arr, int low, int high) {
    if (low >= high) return;
    int pivot = arr[(low + high) >>> 1];
    int i = low, j = high;
    while (i <= j) {
        while (arr[i] < pivot) i++;
        while (arr[j] > pivot) j--;
        if (i <= j) {
            int temp = arr[i];
            arr[i++] = arr[j];
            arr[j--] = temp;
        }
    }
    qs(arr, low, j);
    qs(arr, i, high);
}

//@ 05
static int[] divide(int[] arr) {
    if (arr.length < 2) return arr;
    int half = arr.length / 2;
    int[] left = divide(Arrays.copyOfRange(arr, 0, half));
    int[] right = divide(Arrays.copyOfRange(arr, half, arr.length));
    int[] merged = new int[arr.length];
    int l = 0, r = 0;
    for (int k = 0; k < merged.length; k++) {
        boolean takeLeft = r == right.length || (l < left.length && left[l] <= right[r]);
        merged[k] = takeLeft ? left[l++] : right[r++];
    }
    return merged;
}

//@ 06
public void heapify(int[] arr) {
    int n = arr.length;
    for (int root = n / 2 - 1, end = n; end > 1; ) {
        if (root >= 0) {
            root--;
        } else {
            end--;
            int temp = arr[0]; arr[0] = arr[end]; arr[end] = temp;
        }
        int p = Math.max(root + 1, 0);
        while (2 * p + 1 < end) {
            int child = 2 * p + 1;
            if (child + 1 < end && arr[child + 1] > arr[child]) child++;
            if (arr[p] >= arr[child]) break;
            int temp = arr[p]; arr[p] = arr[child]; arr[child] = temp;
            p = child;
        }
    }
}

//@ 07
static void shell(int[] arr) {
    for (int gap = arr.length / 2; gap > 0; gap /= 2) {
        for (int i = gap; i < arr.length; i++) {
            int temp = arr[i], pos = i;
            for (; pos >= gap && arr[pos - gap] > temp; pos -= gap) {
                arr[pos] = arr[pos - gap];
            }
            arr[pos] = temp;
        }
    }
}

//@ 08
/**
 * Works only for small non-negative numbers.
 * @throws IllegalArgumentException if a number is out of range
 */
public static int[] counting(int[] numbers, int max) {
    int[] buckets = new int[max + 1];
    for (int n : numbers) {
        if (n < 0 || n > max) throw new IllegalArgumentException("out of range: " + n);
        buckets[n]++;
    }
    int[] out = new int[numbers.length];
    int at = 0;
    for (int value = 0; value <= max; value++) {
        while (buckets[value]-- > 0) out[at++] = value;
    }
    return out;
}

//@ 09
static List<Integer> run(Collection<Integer> unordered) {
    PriorityQueue<Integer> queue = new PriorityQueue<>(unordered);
    List<Integer> ordered = new ArrayList<>(queue.size());
    while (!queue.isEmpty()) {
        ordered.add(queue.poll());
    }
    return ordered;
}

//@ 10
public static void cocktail(long[] arr) {
    boolean swapped = true;
    int from = 0, to = arr.length - 1;
    while (swapped) {
        swapped = false;
        for (int i = from; i < to; i++)
            if (arr[i] > arr[i + 1]) { long temp = arr[i]; arr[i] = arr[i + 1]; arr[i + 1] = temp; swapped = true; }
        to--;
        for (int i = to; i > from; i--)
            if (arr[i] < arr[i - 1]) { long temp = arr[i]; arr[i] = arr[i - 1]; arr[i - 1] = temp; swapped = true; }
        from++;
    }
}

//@ 11
List<Integer> process(List<Integer> list) {
    if (list.size() <= 1) {
        return list;
    }
    Integer pivot = list.get(0);
    List<Integer> rest = list.subList(1, list.size());
    List<Integer> result = new ArrayList<>();
    result.addAll(process(rest.stream().filter(e -> e < pivot).collect(Collectors.toList())));
    result.add(pivot);
    result.addAll(process(rest.stream().filter(e -> e >= pivot).collect(Collectors.toList())));
    return result;
}

//@ 12
static void gnome(int[] arr) {
    int pos = 0;
    while (pos < arr.length) {
        if (pos == 0 || arr[pos] >= arr[pos - 1]) {
            pos++;
        } else {
            int temp = arr[pos];
            arr[pos] = arr[--pos];
            arr[pos] = temp;
        }
    }
}

//@ 13
public static <T extends Comparable<T>> void arrange(T[] arr) {
    // insertion, with the place found by halving
    for (int i = 1; i < arr.length; i++) {
        T key = arr[i];
        int lo = 0, hi = i;
        while (lo < hi) {
            int m = (lo + hi) / 2;
            if (key.compareTo(arr[m]) < 0) hi = m;
            else lo = m + 1;
        }
        System.arraycopy(arr, lo, arr, lo + 1, i - lo);
        arr[lo] = key;
    }
}

//@ 14
protected static void solve(int[] a, int n) {
    if (n < 2) return;
    int biggest = 0;
    for (int i = 1; i < n; i++) {
        if (a[i] > a[biggest]) biggest = i;
    }
    int temp = a[n - 1];
    a[n - 1] = a[biggest];
    a[biggest] = temp;
    solve(a, n - 1);
}

//@ 15
public static int[] radix(int[] arr) {
    for (int shift = 0; shift < 31; shift += 8) {
        int[] count = new int[257];
        for (int k : arr) count[((k >> shift) & 0xff) + 1]++;
        for (int d = 0; d < 256; d++) count[d + 1] += count[d];
        int[] next = new int[arr.length];
        for (int k : arr) next[count[(k >> shift) & 0xff]++] = k;
        arr = next;
    }
    return arr;
}

//@ 16
Vector<Integer> orderNumbers(Vector<Integer> given) {
    Vector<Integer> target = new Vector<Integer>();
    for (Enumeration<Integer> e = given.elements(); e.hasMoreElements(); ) {
        Integer el = e.nextElement();
        int slot = 0;
        while (slot < target.size() && target.elementAt(slot).compareTo(el) <= 0) {
            slot++;
        }
        target.insertElementAt(el, slot);
    }
    return target;
}

//@ 17
static int[] viaTree(int... unsorted) {
    if (unsorted == null) return new int[0];
    TreeMap<Integer, Integer> occurrences = new TreeMap<>();
    for (int u : unsorted) {
        occurrences.put(u, occurrences.getOrDefault(u, 0) + 1);
    }
    return occurrences.entrySet().stream()
        .flatMapToInt(e -> IntStream.generate(e::getKey).limit(e.getValue()))
        .toArray();
}

//@ 18
public void f(float[] arr) {
  float shrink = 1.3f;
  int gap = arr.length;
  boolean done = false;
  while (!done) {
    gap = (int) (gap / shrink);
    if (gap <= 1) { gap = 1; done = true; }
    for (int i = 0; i + gap < arr.length; i++) {
      if (arr[i] > arr[i + gap]) {
        float temp = arr[i]; arr[i] = arr[i + gap]; arr[i + gap] = temp;
        done = false;
      }
    }
  }
}

//@ 19
static void iterativeQuick(int[] arr) {
    Deque<int[]> todo = new ArrayDeque<>();
    todo.push(new int[] {0, arr.length - 1});
    while (!todo.isEmpty()) {
        int[] range = todo.pop();
        if (range[0] >= range[1]) continue;
        int wall = range[0];
        for (int i = range[0]; i < range[1]; i++) {
            if (arr[i] < arr[range[1]]) {
                int temp = arr[i]; arr[i] = arr[wall]; arr[wall++] = temp;
            }
        }
        int temp = arr[wall]; arr[wall] = arr[range[1]]; arr[range[1]] = temp;
        todo.push(new int[] {range[0], wall - 1});
        todo.push(new int[] {wall + 1, range[1]});
    }
}

//@ 20
/** Flips prefixes of the pile, as with pancakes. */
static void flipUp(int[] pile) {
    for (int size = pile.length; size > 1; size--) {
        int max = 0;
        for (int i = 0; i < size; i++) max = pile[i] > pile[max] ? i : max;
        for (int end : new int[] {max, size - 1}) {
            for (int i = 0, j = end; i < j; i++, j--) {
                int temp = pile[i];
                pile[i] = pile[j];
                pile[j] = temp;
            }
        }
    }
}

//@ 21
public static void bubble(int[] numbers) {
    boolean swapped;
    do {
        swapped = false;
        for (int i = 1; i < numbers.length; i++) {
            if (numbers[i - 1] > numbers[i]) {
                int tmp = numbers[i];
                numbers[i] = numbers[i - 1];
                numbers[i - 1] = tmp;
                swapped = true;
            }
        }
    } while (swapped);
}

//@ 22
static void insertionSort(double[] a) {
    for (int i = 1; i < a.length; i++) {
        for (int j = i; j > 0 && a[j - 1] > a[j]; j--) {
            double tmp = a[j];
            a[j] = a[j - 1];
            a[j - 1] = tmp;
        }
    }
}

//@ 23
void selectionSort(int[] a) {
    int n = a.length;
    for (int i = 0; i < n - 1; i++) {
        int smallest = i;
        for (int j = i + 1; j < n; j++) {
            if (a[j] < a[smallest]) {
                smallest = j;
            }
        }
        if (smallest != i) {
            int tmp = a[i];
            a[i] = a[smallest];
            a[smallest] = tmp;
        }
    }
}

//@ 24
static void quickSort(int[] a, int lo, int hi) {
    if (lo < hi) {
        int pivot = a[hi];
        int p = lo;
        for (int j = lo; j < hi; j++) {
            if (a[j] <= pivot) {
                int tmp = a[p];
                a[p] = a[j];
                a[j] = tmp;
                p++;
            }
        }
        int tmp = a[p];
        a[p] = a[hi];
        a[hi] = tmp;
        quickSort(a, lo, p - 1);
        quickSort(a, p + 1, hi);
    }
}

//@ 25
public static void mergeSort(int[] a, int[] tmp, int left, int right) {
    if (right - left < 1) return;
    int mid = (left + right) / 2;
    mergeSort(a, tmp, left, mid);
    mergeSort(a, tmp, mid + 1, right);
    int i = left, j = mid + 1;
    for (int k = left; k <= right; k++) {
        if (j > right || (i <= mid && a[i] <= a[j])) tmp[k] = a[i++];
        else tmp[k] = a[j++];
    }
    for (int k = left; k <= right; k++) a[k] = tmp[k];
}

//@ 26
static void descending(int[] values) {
    for (int i = 0; i < values.length; i++) {
        for (int j = i + 1; j < values.length; j++) {
            if (values[i] < values[j]) {
                int swap = values[i];
                values[i] = values[j];
                values[j] = swap;
            }
        }
    }
}

//@ 27
void sortNames(String[] names) {
    for (int i = 0; i < names.length - 1; i++) {
        for (int j = 0; j < names.length - i - 1; j++) {
            if (names[j].compareTo(names[j + 1]) > 0) {
                String tmp = names[j];
                names[j] = names[j + 1];
                names[j + 1] = tmp;
            }
        }
    }
}

//@ 28
public static void sortList(List<Integer> list) {
    for (int i = 1; i < list.size(); i++) {
        int current = list.get(i);
        int j = i - 1;
        while (j >= 0 && list.get(j) > current) {
            list.set(j + 1, list.get(j));
            j--;
        }
        list.set(j + 1, current);
    }
}

//@ 29
static void oddEven(int[] a) {
    boolean sorted = false;
    while (!sorted) {
        sorted = true;
        for (int start = 0; start < 2; start++) {
            for (int i = start; i + 1 < a.length; i += 2) {
                if (a[i] > a[i + 1]) {
                    int tmp = a[i];
                    a[i] = a[i + 1];
                    a[i + 1] = tmp;
                    sorted = false;
                }
            }
        }
    }
}

//@ 30
static void zerosOnesTwos(int[] a) {
    int low = 0, mid = 0, high = a.length - 1;
    while (mid <= high) {
        if (a[mid] == 0) {
            int tmp = a[low]; a[low++] = a[mid]; a[mid++] = tmp;
        } else if (a[mid] == 2) {
            int tmp = a[high]; a[high--] = a[mid]; a[mid] = tmp;
        } else {
            mid++;
        }
    }
}

//@ 31
public void heapSort(int[] a) {
    for (int end = a.length; end > 1; end--) {
        for (int i = end / 2 - 1; i >= 0; i--) {
            int largest = 2 * i + 1;
            if (largest + 1 < end && a[largest + 1] > a[largest]) largest++;
            if (a[largest] > a[i]) {
                int tmp = a[i];
                a[i] = a[largest];
                a[largest] = tmp;
            }
        }
        int tmp = a[0];
        a[0] = a[end - 1];
        a[end - 1] = tmp;
    }
}

//@ 32
static int[] byRank(int[] a) {
    int[] sorted = new int[a.length];
    for (int i = 0; i < a.length; i++) {
        int rank = 0;
        for (int j = 0; j < a.length; j++) {
            if (a[j] < a[i] || (a[j] == a[i] && j < i)) {
                rank++;
            }
        }
        sorted[rank] = a[i];
    }
    return sorted;
}
