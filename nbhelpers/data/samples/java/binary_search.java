// SPDX-License-Identifier: Apache-2.0
// Family: find a value in sorted data by halving the range (or an equal of it).
// Written for nbhelpers as a sample. A line "//@ NN" starts each method; see README.md.

//@ 01
public static int binarySearch(int[] a, int key) {
    int low = 0;
    int high = a.length - 1;
    while (low <= high) {
        int mid = low + (high - low) / 2;
        if (key < a[mid]) high = mid - 1;
        else if (key > a[mid]) low = mid + 1;
        else return mid;
    }
    return -1;
}

//@ 02
static int find(int[] arr, int target, int from, int to) {
    if (from > to) {
        return -1;
    }
    int mid = (from + to) >>> 1;
    if (arr[mid] == target) {
        return mid;
    }
    return arr[mid] > target
            ? find(arr, target, from, mid - 1)
            : find(arr, target, mid + 1, to);
}

//@ 03
int lowerBound(List<Integer> list, int x)
{
    int first = 0, count = list.size();
    while (count > 0)
    {
        int step = count / 2;
        if (list.get(first + step) < x)
        {
            first += step + 1;
            count -= step + 1;
        }
        else
            count = step;
    }
    return first;
}

//@ 04
public boolean contains(String[] names, String wanted) {
    int left = 0, right = names.length;
    while (left < right) {
        int mid = (left + right) / 2;
        int cmp = names[mid].compareTo(wanted);
        if (cmp == 0) return true;
        if (cmp < 0) {
            left = mid + 1;
        } else {
            right = mid;
        }
    }
    return false;
}

//@ 05
static <T extends Comparable<? super T>> int run(T[] items, T key) {
    if (items == null || items.length == 0) return -1;
    int low = 0, high = items.length - 1;
    do {
        int mid = low + ((high - low) >> 1);
        int c = key.compareTo(items[mid]);
        if (c == 0) {
            return mid;
        } else if (c < 0) {
            high = mid - 1;
        } else {
            low = mid + 1;
        }
    } while (low <= high);
    return -1;
}

//@ 06
/** Jumps by shrinking powers of two. */
static int jump(long[] values, long key) {
    int pos = -1;
    for (int step = Integer.highestOneBit(Math.max(values.length, 1)); step > 0; step >>= 1) {
        while (pos + step < values.length && values[pos + step] <= key) {
            pos += step;
        }
    }
    return pos >= 0 && values[pos] == key ? pos : -1;
}

//@ 07
public static int indexOf(double[] data, double key) {
    int mid = Arrays.binarySearch(data, key);
    if (mid < 0) {
        return -1;
    }
    // step back to the first of several equal values
    while (mid > 0 && data[mid - 1] == key) {
        mid--;
    }
    return mid;
}

//@ 08
Optional<Integer> locate(List<? extends Number> numbers, double value) {
    int low = 0, high = numbers.size() - 1;
    while (low <= high) {
        int mid = (low + high) / 2;
        double candidate = numbers.get(mid).doubleValue();
        if (candidate == value) return Optional.of(mid);
        if (candidate < value) low = mid + 1;
        else high = mid - 1;
    }
    return Optional.empty();
}

//@ 09
static int[] equalRange(int[] nums, int target) {
    int[] range = {-1, -1};
    for (int side = 0; side < 2; side++) {
        int low = 0, high = nums.length - 1;
        while (low <= high) {
            int mid = (low + high) / 2;
            if (nums[mid] == target) range[side] = mid;
            boolean goRight = nums[mid] < target || (nums[mid] == target && side == 1);
            if (goRight) low = mid + 1;
            else high = mid - 1;
        }
    }
    return range;
}

//@ 10
public static int gallop(int[] array, int wanted) {
    if (array.length == 0) return -1;
    int bound = 1;
    while (bound < array.length && array[bound] < wanted) {
        bound *= 2;
    }
    int low = bound / 2;
    int high = Math.min(bound, array.length - 1);
    while (low < high) {
        int mid = (low + high) / 2;
        if (array[mid] < wanted) low = mid + 1; else high = mid;
    }
    return array[low] == wanted ? low : -1;
}

//@ 11
private boolean f(int[] a, int key) {
    if (a.length == 0) return false;
    int mid = a.length / 2;
    if (a[mid] == key) return true;
    int[] part = key < a[mid] ? Arrays.copyOfRange(a, 0, mid) : Arrays.copyOfRange(a, mid + 1, a.length);
    return f(part, key);
}

//@ 12
static int insertionPoint(int[] arr, int x) {
    int low = 0;
    int high = arr.length;
    while (low != high) {
        int mid = low + high >>> 1;
        if (arr[mid] > x) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return low; // behind all elements that are not greater
}

//@ 13
public <K> K lookUp(ArrayList<K> records, K key, Comparator<K> order) {
    int begin = 0;
    int length = records.size();
    while (length > 0) {
        int mid = begin + length / 2;
        int sign = order.compare(records.get(mid), key);
        if (sign == 0) {
            return records.get(mid);
        } else if (sign < 0) {
            length -= length / 2 + 1;
            begin = mid + 1;
        } else {
            length /= 2;
        }
    }
    throw new NoSuchElementException("no such record: " + key);
}

//@ 14
static int solve(int[] a, int key) {
    int low = 0, high = a.length - 1;
    while (low <= high) {
        int third = (high - low) / 3;
        int m1 = low + third, m2 = high - third;
        if (a[m1] == key) return m1;
        if (a[m2] == key) return m2;
        if (key < a[m1]) high = m1 - 1;
        else if (key > a[m2]) low = m2 + 1;
        else { low = m1 + 1; high = m2 - 1; }
    }
    return -1;
}

//@ 15
/**
 * Guesses the place from the value, assuming evenly spread numbers.
 */
public static int guess(int[] table, int key) {
    int low = 0, high = table.length - 1;
    while (low <= high && key >= table[low] && key <= table[high]) {
        if (table[high] == table[low]) {
            return table[low] == key ? low : -1;
        }
        int mid = low + (int) ((long) (key - table[low]) * (high - low) / (table[high] - table[low]));
        if (table[mid] == key) return mid;
        if (table[mid] < key) low = mid + 1;
        else high = mid - 1;
    }
    return -1;
}

//@ 16
Integer floor(Integer[] sortedValues, int limit) {
    Integer answer = null;
    int low = 0, high = sortedValues.length - 1;
    for (int mid = high / 2; low <= high; mid = (low + high) / 2) {
        if (sortedValues[mid] <= limit) {
            answer = sortedValues[mid];
            low = mid + 1;
        } else {
            high = mid - 1;
        }
    }
    return answer;
}

//@ 17
public static char bisect(char[] letters, char c) {
    int begin = 0, stop = letters.length;
    while (stop - begin > 1) {
        int mid = (begin + stop) / 2;
        if (letters[mid] <= c)
            begin = mid;
        else
            stop = mid;
    }
    return letters.length > 0 && letters[begin] == c ? letters[begin] : '?';
}

//@ 18
protected int process(List<String> words, String target) {
  List<String> window = words;
  int offset = 0;
  while (!window.isEmpty()) {
    int mid = window.size() / 2;
    int order = target.compareToIgnoreCase(window.get(mid));
    if (order == 0) return offset + mid;
    if (order > 0) offset += mid + 1;
    window = order < 0 ? window.subList(0, mid) : window.subList(mid + 1, window.size());
  }
  return -1;
}

//@ 19
static int firstTrue(int low, int high, java.util.function.IntPredicate enough) {
    while (low < high) {
        int mid = low + (high - low) / 2;
        if (enough.test(mid)) {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    return low;
}

//@ 20
public static boolean inMatrix(int[][] grid, int target) {
    int rows = grid.length, cols = rows == 0 ? 0 : grid[0].length;
    int low = 0, high = rows * cols;
    while (low < high) {
        int mid = (low + high) / 2;
        int cell = grid[mid / cols][mid % cols];
        if (cell == target) {
            return true;
        }
        if (cell < target) { low = mid + 1; } else { high = mid; }
    }
    return false;
}

//@ 21
static int search(int[] sorted, int value) {
    int left = 0;
    int right = sorted.length - 1;
    while (left <= right) {
        int middle = (left + right) / 2;
        if (sorted[middle] == value) {
            return middle;
        }
        if (sorted[middle] < value) {
            left = middle + 1;
        } else {
            right = middle - 1;
        }
    }
    return -1;
}

//@ 22
public static int searchRecursive(int[] a, int key, int low, int high) {
    if (low > high) return -1;
    int mid = low + (high - low) / 2;
    if (key < a[mid]) return searchRecursive(a, key, low, mid - 1);
    if (key > a[mid]) return searchRecursive(a, key, mid + 1, high);
    return mid;
}

//@ 23
boolean has(long[] sorted, long value) {
    int lo = 0, hi = sorted.length - 1;
    while (lo <= hi) {
        int mid = (lo + hi) >>> 1;
        if (sorted[mid] < value) lo = mid + 1;
        else if (sorted[mid] > value) hi = mid - 1;
        else return true;
    }
    return false;
}

//@ 24
static int firstOccurrence(int[] a, int key) {
    int low = 0, high = a.length - 1, result = -1;
    while (low <= high) {
        int mid = low + (high - low) / 2;
        if (a[mid] == key) {
            result = mid;
            high = mid - 1;
        } else if (a[mid] < key) {
            low = mid + 1;
        } else {
            high = mid - 1;
        }
    }
    return result;
}

//@ 25
static int upperBound(int[] a, int key) {
    int low = 0, high = a.length;
    while (low < high) {
        int mid = (low + high) / 2;
        if (a[mid] <= key) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

//@ 26
public int findWord(List<String> dictionary, String word) {
    int low = 0;
    int high = dictionary.size() - 1;
    while (low <= high) {
        int mid = (low + high) / 2;
        int order = dictionary.get(mid).compareTo(word);
        if (order < 0) {
            low = mid + 1;
        } else if (order > 0) {
            high = mid - 1;
        } else {
            return mid;
        }
    }
    return -(low + 1);
}

//@ 27
static int guessNumber(java.util.function.IntUnaryOperator oracle, int max) {
    int low = 1, high = max;
    while (low <= high) {
        int mid = low + (high - low) / 2;
        int answer = oracle.applyAsInt(mid);
        if (answer == 0) return mid;
        if (answer > 0) low = mid + 1;
        else high = mid - 1;
    }
    throw new NoSuchElementException();
}

//@ 28
static int rotated(int[] a, int key) {
    int low = 0, high = a.length - 1;
    while (low <= high) {
        int mid = (low + high) / 2;
        if (a[mid] == key) return mid;
        if (a[low] <= a[mid]) {
            if (a[low] <= key && key < a[mid]) high = mid - 1;
            else low = mid + 1;
        } else {
            if (a[mid] < key && key <= a[high]) low = mid + 1;
            else high = mid - 1;
        }
    }
    return -1;
}

//@ 29
public static int squareRoot(int n) {
    int low = 0, high = n, answer = 0;
    while (low <= high) {
        int mid = low + (high - low) / 2;
        if ((long) mid * mid <= n) {
            answer = mid;
            low = mid + 1;
        } else {
            high = mid - 1;
        }
    }
    return answer;
}

//@ 30
boolean inGrid(int[][] grid, int key) {
    int columns = grid[0].length;
    int low = 0, high = grid.length * columns - 1;
    while (low <= high) {
        int mid = (low + high) / 2;
        int value = grid[mid / columns][mid % columns];
        if (value == key) return true;
        if (value < key) low = mid + 1;
        else high = mid - 1;
    }
    return false;
}

//@ 31
static int closest(int[] a, int key) {
    int low = 0, high = a.length - 1;
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (a[mid] < key) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return Math.abs(a[low] - key) <= Math.abs(a[high] - key) ? low : high;
}

//@ 32
static int peak(int[] a) {
    int low = 0, high = a.length - 1;
    while (low < high) {
        int mid = (low + high) / 2;
        if (a[mid] < a[mid + 1]) low = mid + 1;
        else high = mid;
    }
    return low;
}
